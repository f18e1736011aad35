"""Build tiny T5, GPT-2, Longformer and BERT models with their tokenizers from a text corpus.

Example: python scripts/make_tiny_models.py data=world/train.json output_dir=outputs/tiny
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="make_tiny_models")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
