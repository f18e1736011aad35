"""Annotate the tasks of a FactWorld project as people would who err at known rates.

Example: python scripts/simulate_annotators.py tasks=outputs/tasks output_dir=outputs/exports noise=0.55
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("simulate_annotators")  # under @hydra.main: Hydra's tab completion looks for these words
