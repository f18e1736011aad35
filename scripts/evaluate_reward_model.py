"""Measure a reward model on a feedback file: labels, marked spans, calibration.

Example: python scripts/evaluate_reward_model.py path=outputs/relevance data=dev_feedback.json output=trust.json
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate_reward_model")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
