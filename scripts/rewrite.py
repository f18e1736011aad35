"""Rewrite questions in dialogues so that they stand alone, and search with the rewrites; JSON lines.

Example: python scripts/rewrite.py checkpoint=outputs/conqrr input=questions.jsonl output=rewrites.jsonl index=DIR
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("rewrite")  # under @hydra.main: Hydra's tab completion looks for these words
