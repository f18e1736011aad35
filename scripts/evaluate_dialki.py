"""Measure how well a trained DIALKI finds knowledge: scores by group, every answer, and the thesis's figures.

Example: python scripts/evaluate_dialki.py checkpoint=outputs/dialki data=test.jsonl output_dir=outputs/dialki_test
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="evaluate_dialki")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
