"""Train DIALKI: which passage, and which spans of it, the next answer in a dialogue rests on.

Example: python scripts/train_dialki.py data=train.jsonl validation_data=dev.jsonl model=DIR output_dir=outputs/dialki
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_dialki")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
