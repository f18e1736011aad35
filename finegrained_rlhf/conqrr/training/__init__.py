"""Training the rewriter: supervised, self-critical, or both."""
