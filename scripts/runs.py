"""List every run below a directory: at work, finished, stopped early and why, resumable or damaged; step, score, age.

Example: python scripts/runs.py directory=outputs
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("runs")  # under @hydra.main: Hydra's tab completion looks for these words
