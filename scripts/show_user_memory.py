"""Write one HTML page about what is remembered of a user, from what, and when it was used; it needs no network.

Example: python scripts/show_user_memory.py memory=users.db user=ada output=ada.html
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("show_user_memory")  # under @hydra.main: Hydra's tab completion looks for these words
