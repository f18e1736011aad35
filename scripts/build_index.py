"""Index a corpus of passages, for search and for rewards.

Example: python scripts/build_index.py corpus=corpus.jsonl output_dir=outputs/bm25
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("build_index")  # under @hydra.main: Hydra's tab completion looks for these words
