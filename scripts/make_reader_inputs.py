"""Make the prompts of a reader of INSCIT: conversation, passages, and what is to be said.

Example: python scripts/make_reader_inputs.py data=dev.json retrieved=dev_passages.json corpus=DIR output=dev.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_reader_inputs")  # under @hydra.main: Hydra's tab completion looks for these words
