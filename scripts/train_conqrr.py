"""Train a query rewriter: supervised (T5QR), or by what a retriever makes of its rewrites (CONQRR).

Example: python scripts/train_conqrr.py experiment=conqrr/qrecc_mix data.path=FILE labels=FILE index=DIR policy.path=RUN
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_conqrr")  # under @hydra.main: Hydra's tab completion looks for these words
