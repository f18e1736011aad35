"""Say what a file of RealToxicityPrompts holds, in counts; no text is printed.

Example: python scripts/inspect_prompts.py data=prompts.jsonl format=json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("inspect_prompts")  # under @hydra.main: Hydra's tab completion looks for these words
