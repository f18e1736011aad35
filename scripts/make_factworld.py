"""Make a FactWorld: prompts, demonstrations by an imperfect writer, and the facts behind them.

Example: python scripts/make_factworld.py output_dir=outputs/world train=1500 seed=1
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="make_factworld")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
