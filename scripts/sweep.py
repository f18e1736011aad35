"""Train, evaluate and compare a policy for every combination of values, each point in processes of its own.

Example: python scripts/sweep.py experiment=smoke output_dir=outputs/sweep reward.weights.relevance=0.2,0.3
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("sweep")  # under @hydra.main: Hydra's tab completion looks for these words
