"""Find the knowledge that the next answer rests on, for a file of dialogues or one dialogue, as JSON lines.

Example: python scripts/identify_knowledge.py checkpoint=outputs/dialki input=dialogues.jsonl output=found.jsonl
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="identify_knowledge")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
