"""Label passages for the questions of dialogues, by the answers that follow them; the same call reads its cache.

Example: python scripts/label_passages.py data.path=FILE data.format=qrecc corpus=DIR index=DIR output=labels.jsonl
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="label_passages")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
