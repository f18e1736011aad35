"""Reward models that learn from span feedback: labels, inputs, training and scoring. Knows no policy and no PPO."""
