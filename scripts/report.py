"""Write one HTML page about a training run, or about several beside one another; it needs no network.

Example: python scripts/report.py run=outputs/factworld/fine_grained_rlhf
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("report")  # under @hydra.main: Hydra's tab completion looks for these words
