"""Reward models that learn from span feedback. Knows labels, inputs, training and scoring; knows no policy and no PPO."""
