"""Train a classifier of texts on labels or scores; its probability of a label can be a reward.

Example: python scripts/train_classifier.py data=FILE validation_data=FILE model=DIR output_dir=outputs/classifier
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_classifier")  # under @hydra.main: Hydra's tab completion looks for these words
