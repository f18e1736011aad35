"""Say how the rollouts that a PPO run kept would rank, and be learnt from, under another reward, without any model.

Example: python scripts/reweigh.py run=outputs/factworld/fine_grained_rlhf reward.weights.relevance=0.8
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("reweigh")  # under @hydra.main: Hydra's tab completion looks for these words
