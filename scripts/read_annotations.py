"""Read what annotators exported: check every mark against the tasks, repair and count, or refuse.

Example: python scripts/read_annotations.py exports=[FILE,FILE] tasks=DIR output=outputs/annotations.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("read_annotations")  # under @hydra.main: Hydra's tab completion looks for these words
