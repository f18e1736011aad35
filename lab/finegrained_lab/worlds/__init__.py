"""Generated data with an oracle that knows every error. Systems never import a world."""
