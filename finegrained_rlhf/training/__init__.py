"""Floor 5: supervised fine-tuning, PPO and self-critical training. Joins rollouts and rewards; knows no task."""
