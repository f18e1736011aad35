"""Label passages for the questions of dialogues, by the answers that follow them; the same call reads its cache.

Example: python scripts/label_passages.py data.path=FILE data.format=qrecc corpus=DIR index=DIR output=labels.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("label_passages")  # under @hydra.main: Hydra's tab completion looks for these words
