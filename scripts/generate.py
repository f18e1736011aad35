"""Stream what a policy answers to a file of prompts, or to raw text from standard input, as JSON lines.

Example: python scripts/generate.py checkpoint=outputs/ppo input=prompts.jsonl output=answers.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("generate")  # under @hydra.main: Hydra's tab completion looks for these words
