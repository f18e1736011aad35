"""Fine-tune a policy on reference answers.

Example: python scripts/train_sft.py data=train_1k.json validation_data=dev.json policy.path=DIR output_dir=outputs/sft
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_sft")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
