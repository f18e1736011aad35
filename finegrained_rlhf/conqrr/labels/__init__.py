"""Weak passage labels from human rewrites or contexts."""
