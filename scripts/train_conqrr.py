"""Train a query rewriter: supervised (T5QR), or by what a retriever makes of its rewrites (CONQRR).

Example: python scripts/train_conqrr.py experiment=qrecc_mix data.path=FILE labels=FILE index=DIR policy.path=RUN
"""

import hydra
from _app import run_app
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="../conf", config_name="train_conqrr")
def main(cfg: DictConfig) -> None:
    """Compose the configuration and run it."""
    run_app(cfg)


if __name__ == "__main__":
    main()
