"""Measure how far the reward models of a FactWorld run agree with the oracle on what its policy wrote in training.

Example: python scripts/measure_drift.py run=outputs/factworld/fine_grained_rlhf
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("measure_drift")  # under @hydra.main: Hydra's tab completion looks for these words
