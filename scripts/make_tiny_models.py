"""Build tiny T5, GPT-2, Longformer and BERT models with their tokenizers from a text corpus.

Example: python scripts/make_tiny_models.py data=world/train.json output_dir=outputs/tiny
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_tiny_models")  # under @hydra.main: Hydra's tab completion looks for these words
