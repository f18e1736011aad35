"""Make a PahfWorld: users with rules about what they like, and scenes for the four phases of PAHF.

Example: python scripts/make_pahf_world.py output_dir=outputs/pahf_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_pahf_world")  # under @hydra.main: Hydra's tab completion looks for these words
