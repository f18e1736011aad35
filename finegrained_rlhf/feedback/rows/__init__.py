"""JSON objects of feedback files, and their columns as a data set."""
