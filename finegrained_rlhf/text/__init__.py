"""Text without a model: segmentation, alignment with tokens, prompt templates, scores."""
