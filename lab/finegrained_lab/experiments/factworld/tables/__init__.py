"""One table of chapter 6 a module."""
