"""Measure how far the reward models of a FactWorld run agree with the oracle on what its policy wrote in training.

Example: python scripts/measure_drift.py run=outputs/factworld/fine_grained_rlhf
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="measure_drift")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
