"""Make two Hugging Face directories of a checkpoint of Facebook's DPR: a tower for queries and one for passages.

Example: python scripts/convert_dpr.py checkpoint=dpr_biencoder.37 model=bert-base-uncased output_dir=models/dpr
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("convert_dpr")  # under @hydra.main: Hydra's tab completion looks for these words
