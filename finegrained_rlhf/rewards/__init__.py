"""Floor 3: from segment scores to token rewards. Knows no rollout engine, algorithm or reward model."""

from finegrained_rlhf.rewards.composition import ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rewards.protocol import BaseScorer, Scorer, StartableScorer

__all__ = ["BaseScorer", "ComponentConfig", "RewardComposer", "RewardConfig", "Scorer", "StartableScorer"]
