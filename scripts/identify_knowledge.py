"""Find the knowledge that the next answer rests on, for a file of dialogues or one dialogue, as JSON lines.

Example: python scripts/identify_knowledge.py checkpoint=outputs/dialki input=dialogues.jsonl output=found.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("identify_knowledge")  # under @hydra.main: Hydra's tab completion looks for these words
