"""Train a class-conditional language model on labelled texts, with which GeDi steers a policy (mixer=gedi).

Example: python scripts/train_gedi.py data=FILE validation_data=FILE policy.path=DIR output_dir=outputs/gedi
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_gedi")  # under @hydra.main: Hydra's tab completion looks for these words
