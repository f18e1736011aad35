"""Make prompt files for response generation from dialogues and the knowledge that their answers rest on.

Example: python scripts/make_response_data.py data=train.jsonl knowledge=span output_dir=outputs/response_data
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_response_data")  # under @hydra.main: Hydra's tab completion looks for these words
