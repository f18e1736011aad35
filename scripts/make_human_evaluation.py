"""Make tasks for people who rate INSCIT's systems, a Label Studio project for each rater.

Example: python scripts/make_human_evaluation.py data=dev.json predictions={fid:FILE} raters=[ann,ben] output_dir=DIR
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_human_evaluation")  # under @hydra.main: Hydra's tab completion looks for these words
