"""Measure a policy, or a file of outputs: RougeLSum, reward models, lengths, and on FactWorld the true error rates.

Example: python scripts/evaluate.py checkpoint=outputs/ppo data=test.json output=results.json oracle=factworld
"""

import sys

import hydra
from _app import run_app
from _rewards import opened
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    sys.argv[1:] = opened(sys.argv[1:])
    main()
