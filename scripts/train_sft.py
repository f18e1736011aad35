"""Fine-tune a policy on reference answers.

Example: python scripts/train_sft.py data=train_1k.json validation_data=dev.json policy.path=DIR output_dir=outputs/sft
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_sft")  # under @hydra.main: Hydra's tab completion looks for these words
