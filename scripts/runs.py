"""List every run below a directory: at work, finished, stopped early and why, resumable or damaged; step, score, age.

Example: python scripts/runs.py directory=outputs
"""

import sys

import hydra
from _app import run_app
from _plain_words import with_keys
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="runs")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    sys.argv[1:] = with_keys(sys.argv[1:], "directory")
    main()
