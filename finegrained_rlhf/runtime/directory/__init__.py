"""A run's directory: its files, who holds it, what it was made from, its samples."""
