"""Evaluate rewrites of questions in dialogues by what a retriever finds with them.

Example: python scripts/evaluate_rewrites.py data.path=FILE index=DIR output=scores.json +rewrites.t5qr=FILE
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate_rewrites")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
