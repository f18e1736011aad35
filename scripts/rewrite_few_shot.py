"""Rewrite questions in dialogues by a language model with a few demonstrations in its prompt.

Example: python scripts/rewrite_few_shot.py writer.checkpoint=MODEL data.path=FILE demonstrations.path=FILE output=FILE
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("rewrite_few_shot")  # under @hydra.main: Hydra's tab completion looks for these words
