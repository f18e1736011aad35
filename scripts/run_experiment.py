"""Run an experiment of several steps, each the same as one script with its arguments; finished steps are skipped.

Example: python scripts/run_experiment.py experiment=factworld_demo seed=0
"""

import hydra
from _app import user_errors
from _points import use_own_directory
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="run_experiment")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run every step."""
    use_own_directory(cfg)
    with user_errors():
        from _steps import run_pipeline  # takes seconds to import: --help need not wait for it

        run_pipeline(cfg)


if __name__ == "__main__":
    main()
