"""Floor 4: SFT, classifiers, GeDi, DPR, PPO and self-critical training. Joins rollouts and rewards; knows no task."""
