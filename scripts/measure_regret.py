"""Measure the regret of PAHF's policies in a world where it can be computed, beside formulas and the paper's bounds.

Example: python scripts/measure_regret.py output_dir=outputs/regret seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("measure_regret")  # under @hydra.main: Hydra's tab completion looks for these words
