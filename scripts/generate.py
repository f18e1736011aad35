"""Stream what a policy answers to a file of prompts, or to raw text from standard input, as JSON lines.

Example: python scripts/generate.py checkpoint=outputs/ppo input=prompts.jsonl output=answers.jsonl
"""

import sys

import hydra
from _app import run_app
from _rewards import opened
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="generate")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    sys.argv[1:] = opened(sys.argv[1:])
    main()
