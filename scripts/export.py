"""Export a run's model with a model card, and push both to the Hugging Face Hub where that is asked for.

Example: python scripts/export.py run=outputs/ppo output_dir=exported/my-model push_to=org/my-model
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("export")  # under @hydra.main: Hydra's tab completion looks for these words
