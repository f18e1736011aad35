"""Say what files of INSCIT hold: tables 5.1 and 5.2 of the thesis, and how often people clarify and disagree.

Example: python scripts/inspect_inscit.py data=dev.json format=json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("inspect_inscit")  # under @hydra.main: Hydra's tab completion looks for these words
