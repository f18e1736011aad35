"""Score predictions for INSCIT, anybody's in the published format, or a baseline's: PI-F1, BLEU, RG-F1.

Example: python scripts/evaluate_inscit.py data=dev.json baseline=last_turn
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_inscit")  # under @hydra.main: Hydra's tab completion looks for these words
