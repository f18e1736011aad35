"""Run an agent that asks and is corrected through PAHF's four phases, and say how often it is right.

Example: python scripts/run_pahf.py 'phases=[FILE,FILE,FILE,FILE]' output_dir=outputs/pahf_world/run
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("run_pahf")  # under @hydra.main: Hydra's tab completion looks for these words
