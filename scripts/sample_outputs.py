"""Sample several outputs a prompt from a policy, for annotation.

Example: accelerate launch scripts/sample_outputs.py checkpoint=outputs/sft data=train.json output=outputs.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("sample_outputs")  # under @hydra.main: Hydra's tab completion looks for these words
