"""Reports: one self-contained HTML page a run or a sweep, readable from disk without a network.

Knows the files of run directories and how to draw them. Knows no task and no Hydra; computes no reward.
"""
