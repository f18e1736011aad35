"""Read what raters of INSCIT's systems exported from Label Studio.

Example: python scripts/read_human_evaluation.py exports={ann:FILE} tasks=DIR output=ratings.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("read_human_evaluation")  # under @hydra.main: Hydra's tab completion looks for these words
