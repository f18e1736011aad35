"""Make prompt files for response generation from dialogues and the knowledge that their answers rest on.

Example: python scripts/make_response_data.py data=train.jsonl knowledge=span output_dir=outputs/response_data
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="make_response_data")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
