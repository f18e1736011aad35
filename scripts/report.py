"""Write one HTML page about a training run, or about several beside one another; it needs no network.

Example: python scripts/report.py run=outputs/factworld/fine_grained_rlhf
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="report")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
