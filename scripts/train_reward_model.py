"""Train one of the four reward models on span feedback or preferences.

Example: python scripts/train_reward_model.py reward_model=relevance data=train_feedback.json model=DIR output_dir=RUN
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("train_reward_model")  # under @hydra.main: Hydra's tab completion looks for these words
