"""What is to be annotated, by whom, in which order."""
