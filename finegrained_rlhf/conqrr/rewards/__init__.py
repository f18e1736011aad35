"""What a rewrite is worth to a query rewriter in training."""
