"""Measure a policy, or a file of outputs: RougeLSum, reward models, lengths, and on FactWorld the true error rates.

Example: python scripts/evaluate.py checkpoint=outputs/ppo data=test.json output=results.json oracle=factworld
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate")  # under @hydra.main: Hydra's tab completion looks for these words
