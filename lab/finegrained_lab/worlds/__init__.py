"""Generated data with an oracle that knows every error; systems never import a world."""
