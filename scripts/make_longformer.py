"""Make a Longformer of a BERT or RoBERTa: the same weights, longer inputs.

Example: python scripts/make_longformer.py model=models/minilm output_dir=models/minilm_longformer
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_longformer")  # under @hydra.main: Hydra's tab completion looks for these words
