"""Train a policy by PPO on fine-grained rewards.

Example: accelerate launch scripts/train_ppo.py experiment=smoke output_dir=outputs/smoke
"""

import hydra
from _app import run_app, user_errors
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_ppo")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it, or with dry_run=true say what memory it needs."""
    if not cfg.dry_run:
        run_app(cfg)
        return
    with user_errors():
        from _dry_run import dry_run

        dry_run(cfg)


if __name__ == "__main__":
    main()
