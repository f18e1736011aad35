"""A user's memory as a page: what is remembered, what it was derived from, and what was used when."""
