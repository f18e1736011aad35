"""Make a RewriteWorld: a corpus of typed passages, and dialogues whose questions need a word of what was said before.

Example: python scripts/make_rewrite_world.py output_dir=outputs/rewrite_world/world seed=1
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="make_rewrite_world")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
