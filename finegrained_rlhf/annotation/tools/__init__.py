"""Tools in which people annotate: tasks out, exports back."""
