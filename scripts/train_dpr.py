"""Train the two towers of dense passage retrieval on queries with passages that answer them and some that do not.

Example: python scripts/train_dpr.py data=FILE validation_data=FILE query_model=DIR passage_model=DIR output_dir=DIR
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_dpr")  # under @hydra.main: Hydra's tab completion looks for these words
