"""Make texts of INSCIT's turns with the type of their response, for train_classifier.py.

Example: python scripts/make_response_types.py data=train.json output=types_train.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_response_types")  # under @hydra.main: Hydra's tab completion looks for these words
