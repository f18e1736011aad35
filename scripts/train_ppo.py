"""Train a policy by PPO on fine-grained rewards.

Example: accelerate launch scripts/train_ppo.py experiment=smoke output_dir=outputs/smoke
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_ppo")  # under @hydra.main: Hydra's tab completion looks for these words
