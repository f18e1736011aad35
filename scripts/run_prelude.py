"""Run agents that learn from a user's edits, CIPHER and its baselines, and say what the edits cost.

Example: python scripts/run_prelude.py contexts=FILE preferences=FILE output_dir=outputs/style_world/run
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("run_prelude")  # under @hydra.main: Hydra's tab completion looks for these words
