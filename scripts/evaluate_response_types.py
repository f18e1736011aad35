"""Measure how well a classifier tells the types of INSCIT's responses.

Example: python scripts/evaluate_response_types.py path=RUN data=dev.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_response_types")  # under @hydra.main: Hydra's tab completion looks for these words
