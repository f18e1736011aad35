"""`python -m finegrained_rlhf.launch train_ppo KEY=VALUE …`, also for `accelerate launch -m`."""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main()
