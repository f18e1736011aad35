"""Responses grounded in found knowledge."""
