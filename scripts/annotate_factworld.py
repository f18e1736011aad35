"""Annotate sampled FactWorld answers as people would: span feedback and preferences in QA-FEEDBACK's schema.

Example: python scripts/annotate_factworld.py input=outputs/samples.jsonl output=outputs/feedback.json noise=1.0
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="annotate_factworld")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
