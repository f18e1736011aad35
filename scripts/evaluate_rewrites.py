"""Evaluate rewrites of questions in dialogues by what a retriever finds with them.

Example: python scripts/evaluate_rewrites.py data.path=FILE index=DIR output=scores.json +rewrites.t5qr=FILE
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_rewrites")  # under @hydra.main: Hydra's tab completion looks for these words
