"""`python -m finegrained_rlhf train-ppo KEY=VALUE …`, also for `accelerate launch -m`; the same as `finegrained`."""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main()
