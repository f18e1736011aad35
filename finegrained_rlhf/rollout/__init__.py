"""Floor 3: prompts → Rollout. Knows no reward and no algorithm."""

from finegrained_rlhf.rollout.engine import RolloutConfig, RolloutEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.select import make_engine

__all__ = ["GenerateEngine", "RolloutConfig", "RolloutEngine", "make_engine"]
