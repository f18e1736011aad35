"""Let a judge read answers with and without injected texts, and say how often it changes its mind.

Example: python scripts/attack_judge.py judge.model=NAME data=outputs_dev.jsonl run=outputs/judged
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("attack_judge")  # under @hydra.main: Hydra's tab completion looks for these words
