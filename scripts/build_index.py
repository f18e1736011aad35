"""Index a corpus of passages, for search and for rewards.

Example: python scripts/build_index.py corpus=corpus.jsonl output_dir=outputs/bm25
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="build_index")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
