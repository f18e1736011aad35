"""Make a FactWorld: prompts, demonstrations by an imperfect writer, and the facts behind them.

Example: python scripts/make_factworld.py output_dir=outputs/world train=1500 seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_factworld")  # under @hydra.main: Hydra's tab completion looks for these words
