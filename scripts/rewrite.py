"""Rewrite questions in dialogues so that they stand alone, and search with the rewrites; JSON lines.

Example: python scripts/rewrite.py checkpoint=outputs/conqrr input=questions.jsonl output=rewrites.jsonl index=DIR
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="rewrite")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
