"""Score a run of the SCAI-QReCC shared task as its evaluator does.

Example: python scripts/evaluate_scai.py data=ground-truth.json predictions=run.json output=scores.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_scai")  # under @hydra.main: Hydra's tab completion looks for these words
