"""Train a policy by PPO on fine-grained rewards.

Example: accelerate launch scripts/train_ppo.py experiment=smoke output_dir=outputs/smoke
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_ppo")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
