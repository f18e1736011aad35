"""Make feedback records of annotations: one an item, of what its annotators said.

Example: python scripts/adjudicate.py annotations=FILE tasks=DIR output=outputs/feedback.json how=majority
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("adjudicate")  # under @hydra.main: Hydra's tab completion looks for these words
