"""Read what a reader of INSCIT said, as predictions for evaluate_inscit.py.

Example: python scripts/read_reader_outputs.py data=FILE inputs=PROMPTS responses=ANSWERS output=predictions.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("read_reader_outputs")  # under @hydra.main: Hydra's tab completion looks for these words
