"""Measure how well a trained DIALKI finds knowledge: scores by group, every answer, and the thesis's figures.

Example: python scripts/evaluate_dialki.py checkpoint=outputs/dialki data=test.jsonl output_dir=outputs/dialki_test
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_dialki")  # under @hydra.main: Hydra's tab completion looks for these words
