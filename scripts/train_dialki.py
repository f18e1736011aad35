"""Train DIALKI: which passage, and which spans of it, the next answer in a dialogue rests on.

Example: python scripts/train_dialki.py data=train.jsonl validation_data=dev.jsonl model=DIR output_dir=outputs/dialki
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_dialki")  # under @hydra.main: Hydra's tab completion looks for these words
