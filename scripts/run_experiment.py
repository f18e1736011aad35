"""Run an experiment of several steps, each the same as one script with its arguments; finished steps are skipped.

Example: python scripts/run_experiment.py pipeline=factworld/demo seed=0
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("run_experiment")  # under @hydra.main: Hydra's tab completion looks for these words
