"""Measure how toxic, fluent and varied a policy's continuations of prompts are.

Example: python scripts/evaluate_detox.py checkpoint=RUN data=FILE output=FILE +scorers.held_out.path=DIR ...
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_detox")  # under @hydra.main: Hydra's tab completion looks for these words
