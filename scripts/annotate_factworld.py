"""Annotate sampled FactWorld answers as people would: span feedback and preferences in QA-FEEDBACK's schema.

Example: python scripts/annotate_factworld.py input=outputs/samples.jsonl output=outputs/feedback.json noise=1.0
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("annotate_factworld")  # under @hydra.main: Hydra's tab completion looks for these words
