"""Sample several outputs a prompt from a policy, for annotation.

Example: accelerate launch scripts/sample_outputs.py checkpoint=outputs/sft data=train.json output=outputs.jsonl
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="sample_outputs")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
