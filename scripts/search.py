"""Search an index for queries, and write JSON lines or a TREC run.

Example: python scripts/search.py index=outputs/bm25 input=questions.jsonl output=run.trec k=100
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("search")  # under @hydra.main: Hydra's tab completion looks for these words
