"""Say what a feedback file holds: span types, missing information, labels for each reward model, agreement.

Example: python scripts/inspect_feedback.py data=dev_feedback.json format=json completeness.matching=token_f1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("inspect_feedback")  # under @hydra.main: Hydra's tab completion looks for these words
