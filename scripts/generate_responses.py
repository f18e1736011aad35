"""Answer dialogues: DIALKI finds the knowledge, a generator puts it into words; scores where responses are known.

Example: python scripts/generate_responses.py checkpoint=RUN knowledge=span dialki=RUN input=FILE output=answers.jsonl
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="generate_responses")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
