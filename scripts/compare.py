"""Compare training runs as text: what differs in their configurations, and their scores at the exported policies.

Example: python scripts/compare.py "runs=[outputs/factworld/fine_grained_rlhf,outputs/factworld/preference_rlhf]"
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("compare")  # under @hydra.main: Hydra's tab completion looks for these words
