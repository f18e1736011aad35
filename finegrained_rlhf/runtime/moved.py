"""What classes and values were called in configurations of version 0.2, so that runs made by it still open.

A configuration names a class by the door of its package (`core/exports.py`). A class that is renamed gets a new door,
and the old one leads to it here. Worlds, experiments, readers of published data and baselines left this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_JOBS_OF_0_1 = frozenset(
    {
        "finegrained_rlhf.conqrr.job.TrainConqrr",
        "finegrained_rlhf.dialki.job.TrainDialki",
        "finegrained_rlhf.training.ppo_job.PPOJob",
        "finegrained_rlhf.training.sft_job.SFTJob",
        "reward_models.job.TrainRewardModel",
    }
)
"""How the configurations of version 0.1 named what trained."""
_RENAMED = {
    "finegrained_rlhf.training.dpr.batches.DprSampling": "finegrained_rlhf.training.dpr.DprSampling",
    **dict.fromkeys(
        (
            "finegrained_rlhf.training.classifier.ClassifierBatchConfig",
            "finegrained_rlhf.training.classifier.trainer.ClassifierBatchConfig",
            "finegrained_rlhf.training.dpr.DprBatchConfig",
            "finegrained_rlhf.training.dpr.trainer.DprBatchConfig",
            "reward_models.RewardBatchConfig",
        ),
        "finegrained_rlhf.training.supervised.BatchConfig",
    ),
}
_LEFT = {
    "finegrained_rlhf.annotation": ("finegrained_lab.experiments.annotation", ("JoinFeedback",)),
    "finegrained_rlhf.annotation.readers": (
        "finegrained_lab.published.feedback",
        ("FavaBench", "MqmSpans", "Prm800k", "RagTruth", "ReadPublicFeedback"),
    ),
    "finegrained_rlhf.conqrr": ("finegrained_lab.experiments.conqrr", ("WriteCanardCorpus",)),
    "finegrained_rlhf.dialki": ("finegrained_lab.baselines", ("BertQaConfig", "WindowConfig")),
    "finegrained_rlhf.detoxification": (
        "finegrained_lab.experiments.detox",
        ("SplitByLabel", "SplitPrompts", "WriteLabelWords", "WriteScoredTexts"),
    ),
    "finegrained_rlhf.experiments.factworld": ("finegrained_rlhf.factworld", ("FactWorldReport",)),
    "finegrained_rlhf.feedback.gold": ("finegrained_lab.experiments.factworld", ("WriteGoldAnswers",)),
    "finegrained_rlhf.inscit": (
        "finegrained_lab.protocols",
        ("MakeHumanEvaluation", "ReadHumanEvaluation", "ScoreHumanEvaluation"),
    ),
    "finegrained_rlhf.models.pretrained": ("finegrained_lab.pretrained", ("PrepareModels",)),
    "finegrained_rlhf.personalization": (
        "finegrained_lab.protocols",
        (
            *("BertScore", "MakeDisambigDocs", "MakePreludeContexts", "ModelEditor", "ModelUser"),
            *("RunCoreset", "RunPahf", "RunPrelude", "ScriptedUser", "ShoppingUser"),
        ),
    ),
    "finegrained_rlhf.worlds.factworld": ("finegrained_lab.worlds.factworld", ("SimulateAnnotators",)),
    "reward_models": ("finegrained_lab.experiments.qa_feedback", ("MakeIntermediateFeedback", "SplitFeedback")),
}
"""Room of version 0.2 → the room that some of its classes are in today."""
_ROOMS = {
    "finegrained_rlhf.worlds.factworld.": "finegrained_rlhf.factworld.",
    "finegrained_rlhf.worlds.": "finegrained_lab.worlds.",
    "finegrained_rlhf.experiments.": "finegrained_lab.experiments.",
    "finegrained_rlhf.inscit.": "finegrained_lab.published.inscit.",
}


def _in_its_room(name: str) -> str:
    """A class of version 0.2 under the name of the room that it moved to."""
    old = next((old for old in _ROOMS if name.startswith(old)), None)
    return name if old is None else _ROOMS[old] + name.removeprefix(old)


MOVED: Mapping[str, str] = {
    **_RENAMED,
    "finegrained_rlhf.conqrr.EvaluateScai": "finegrained_lab.published.questions.EvaluateScai",
    "finegrained_rlhf.retrieval.PyseriniConfig": "finegrained_lab.baselines.PyseriniConfig",
    **{f"{old}.{name}": f"{new}.{name}" for old, (new, names) in _LEFT.items() for name in names},
}
"""`_target_` of version 0.2 → its name today; what moved with its whole room is in `_ROOMS`."""
_VALUES = {"sharding": {"optimizer": "gradients"}}
"""Key → values of version 0.2 that are no longer taken, and the one that has taken their place."""


def is_of_0_1(config: Mapping[str, Any]) -> bool:
    """Whether version 0.1 wrote a configuration of a run. Its runs are not read any more."""
    return config.get("_target_") in _JOBS_OF_0_1


def current_name(name: str) -> str:
    """What a class that a configuration names is called today."""
    return MOVED.get(name) or _in_its_room(name)


def with_current_names(config: Any) -> Any:
    """A configuration in plain containers, in which every old `_target_` and value has its current name."""
    if isinstance(config, Mapping):
        return {key: _current(key, value) for key, value in config.items()}
    return [with_current_names(item) for item in config] if isinstance(config, list) else config


def _current(key: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return with_current_names(value)
    return current_name(value) if key == "_target_" else _VALUES.get(key, {}).get(value, value)
