"""One feedback record of several annotations."""
