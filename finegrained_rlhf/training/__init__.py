"""Floor 4: supervised fine-tuning, PPO and evaluation. Joins rollouts and rewards; knows no task."""
