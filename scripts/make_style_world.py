"""Make a StyleWorld: contexts of five sources, and the style that a reader wants each source's texts in.

Example: python scripts/make_style_world.py output_dir=outputs/style_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_style_world")  # under @hydra.main: Hydra's tab completion looks for these words
