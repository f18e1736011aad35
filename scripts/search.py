"""Search an index for queries, and write JSON lines or a TREC run.

Example: python scripts/search.py index=outputs/bm25 input=questions.jsonl output=run.trec k=100
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="search")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
