"""List what a user did or said that was not learnt from, and learn from it again where a language model is given.

Example: python scripts/catch_up.py memory=users.db user=ada
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("catch_up")  # under @hydra.main: Hydra's tab completion looks for these words
