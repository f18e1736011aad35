"""Compare training runs as text: what differs in their configurations, and their scores at the exported policies.

Example: python scripts/compare.py "runs=[outputs/factworld/fine_grained_rlhf,outputs/factworld/preference_rlhf]"
"""

import sys

import hydra
from _app import run_app
from _plain_words import with_keys
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="compare")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    sys.argv[1:] = with_keys(sys.argv[1:], "runs", several=True)
    main()
