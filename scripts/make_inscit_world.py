"""Make an InscitWorld: articles, conversations whose answers rest on their passages, and the truth about any answer.

Example: python scripts/make_inscit_world.py output_dir=outputs/inscit_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_inscit_world")  # under @hydra.main: Hydra's tab completion looks for these words
