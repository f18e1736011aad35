"""How much memory a run needs, by model and phase."""
