"""Score ratings of INSCIT's systems: means, who wins, how far raters agree.

Example: python scripts/score_human_evaluation.py ratings=ratings.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("score_human_evaluation")  # under @hydra.main: Hydra's tab completion looks for these words
