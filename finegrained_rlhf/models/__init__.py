"""Floor 2: policies, value models, log-probabilities, adapters and tiny models. Knows no reward and no algorithm."""
