"""Make dialogues of INSCIT's turns and their candidate passages, for DIALKI.

Example: python scripts/make_identifier_data.py data=dev.json retrieved=dev_passages.json corpus=DIR output=dev.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_identifier_data")  # under @hydra.main: Hydra's tab completion looks for these words
