"""The parts of a model family that are computed our own way."""
