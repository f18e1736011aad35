"""Fuse two or more TREC runs into one by reciprocal rank.

Example: python scripts/fuse_runs.py "inputs=[bm25.trec,dense.trec]" output=fused.trec
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("fuse_runs")  # under @hydra.main: Hydra's tab completion looks for these words
