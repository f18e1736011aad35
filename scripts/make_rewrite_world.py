"""Make a RewriteWorld: a corpus of typed passages, and dialogues whose questions need a word of what was said before.

Example: python scripts/make_rewrite_world.py output_dir=outputs/rewrite_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_rewrite_world")  # under @hydra.main: Hydra's tab completion looks for these words
