"""Small pretrained models that answer by constrained choice."""
