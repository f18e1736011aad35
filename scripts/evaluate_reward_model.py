"""Measure a reward model on a feedback file: labels, marked spans, calibration.

Example: python scripts/evaluate_reward_model.py path=outputs/relevance data=dev_feedback.json output=trust.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("evaluate_reward_model")  # under @hydra.main: Hydra's tab completion looks for these words
