"""Make a DialogueWorld: documents, dialogues about them, and the knowledge of every turn.

Example: python scripts/make_dialogue_world.py output_dir=outputs/dialogue_world/world seed=1
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_dialogue_world")  # under @hydra.main: Hydra's tab completion looks for these words
