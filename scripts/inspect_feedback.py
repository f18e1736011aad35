"""Say what a feedback file holds: span types, missing information, labels for each reward model, agreement.

Example: python scripts/inspect_feedback.py data=dev_feedback.json format=json completeness.matching=token_f1
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="inspect_feedback")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
