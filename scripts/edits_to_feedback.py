"""Write users' edits of drafts as span feedback, which reward models can be trained on.

Example: python scripts/edits_to_feedback.py data=FILE output=FILE
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("edits_to_feedback")  # under @hydra.main: Hydra's tab completion looks for these words
