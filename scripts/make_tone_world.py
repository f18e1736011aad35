"""Make a ToneWorld: prompts, texts of which some sentences are toxic, and labelled texts, with the truth about each.

Example: python scripts/make_tone_world.py output_dir=outputs/tone_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_tone_world")  # under @hydra.main: Hydra's tab completion looks for these words
