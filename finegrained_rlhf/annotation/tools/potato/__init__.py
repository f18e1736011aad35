"""Potato as an annotation tool."""
