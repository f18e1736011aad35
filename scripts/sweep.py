"""Train, evaluate and compare a policy for every combination of values, each point in processes of its own.

Example: python scripts/sweep.py experiment=smoke output_dir=outputs/sweep reward.weights.relevance=0.2,0.3
"""

import sys

import hydra
from _sweep import as_multirun, interruptible, run_point
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="sweep")
def main(cfg: DictConfig) -> None:
    """Run one point of the multirun."""
    run_point(cfg)


if __name__ == "__main__":
    sys.argv[1:] = as_multirun(sys.argv[1:])
    with interruptible():
        main()
