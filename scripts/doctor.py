"""Check a PPO run's configuration, data, models and machine before it starts.

Example: python scripts/doctor.py experiment=smoke
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("doctor")  # under @hydra.main: Hydra's tab completion looks for these words
