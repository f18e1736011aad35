"""Run agents that are told which of several entities of one name is meant, and say how right they are.

Example: python scripts/run_coreset.py conversations=FILE output_dir=outputs/bios_world/run
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("run_coreset")  # under @hydra.main: Hydra's tab completion looks for these words
