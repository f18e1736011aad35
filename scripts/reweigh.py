"""Say how the rollouts that a PPO run kept would rank, and be learnt from, under another reward, without any model.

Example: python scripts/reweigh.py run=outputs/factworld/fine_grained_rlhf reward.weights.relevance=0.8
"""

import sys

import hydra
from _app import run_app
from _rewards import opened
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="reweigh")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    sys.argv[1:] = opened(sys.argv[1:])
    main()
