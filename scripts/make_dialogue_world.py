"""Make a DialogueWorld: documents, dialogues about them, and the knowledge of every turn.

Example: python scripts/make_dialogue_world.py output_dir=outputs/dialogue_world/world seed=1
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="make_dialogue_world")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
