"""Search an index for every turn of INSCIT.

Example: python scripts/retrieve_evidence.py data=dev.json index=DIR output=dev_passages.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("retrieve_evidence")  # under @hydra.main: Hydra's tab completion looks for these words
