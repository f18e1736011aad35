"""Check a PPO run's configuration, data, models and machine before it starts.

Example: python scripts/doctor.py experiment=smoke
"""

from __future__ import annotations

import sys

import hydra
from _app import user_errors
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="doctor")
def main(cfg: DictConfig) -> None:
    """Compose the configuration of the run and examine it; exit code 0 where it is ready, 1 where it is not."""
    with user_errors():
        from _doctor import examine_config

        if status := examine_config(cfg):
            sys.exit(status)


if __name__ == "__main__":
    main()
