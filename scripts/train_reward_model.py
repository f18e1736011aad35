"""Train one of the four reward models on span feedback or preferences.

Example: python scripts/train_reward_model.py reward_model=relevance data=train_feedback.json model=DIR output_dir=RUN
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_reward_model")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
