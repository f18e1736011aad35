"""From token rewards to advantages: an estimator an algorithm."""
