"""Make a BiosWorld: people of one name, and conversations with a scripted user who means one of them.

Example: python scripts/make_bios_world.py output_dir=outputs/bios_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_bios_world")  # under @hydra.main: Hydra's tab completion looks for these words
