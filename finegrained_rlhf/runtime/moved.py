"""What classes were called in configurations of older versions, so that runs made by them still open.

A configuration names a class by the door of its package (`core/exports.py`) since version 0.2; before, by its module. A
class that is renamed gets a new door, and the old one leads to it here. Worlds and experiments left this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_IN_THIS_PACKAGE = {
    "conqrr.canard_corpus.WriteCanardCorpus": "experiments.conqrr.WriteCanardCorpus",
    "conqrr.evaluation_job.EvaluateRewrites": "conqrr.EvaluateRewrites",
    "conqrr.job.TrainConqrr": "conqrr.TrainConqrr",
    "conqrr.label_files.LabelPassages": "conqrr.LabelPassages",
    "conqrr.labels.LabelConfig": "conqrr.LabelConfig",
    "conqrr.reading.RewriteData": "conqrr.RewriteData",
    "conqrr.results.RewriteTable": "experiments.conqrr.RewriteTable",
    "conqrr.rewrite_job.RewriteQuestions": "conqrr.Rewrite",
    "conqrr.rewriter.RewritingConfig": "conqrr.RewritingConfig",
    "conqrr.world.dialogues.RewriteWorldConfig": "worlds.rewrite.RewriteWorldConfig",
    "conqrr.world.make.MakeRewriteWorld": "worlds.rewrite.MakeRewriteWorld",
    "conqrr.world.table.RewriteWorldTable": "experiments.conqrr.RewriteWorldTable",
    "dialki.baselines.config.WindowConfig": "dialki.WindowConfig",
    "dialki.dstc11_table.Dstc11Table": "experiments.dialki.Dstc11Table",
    "dialki.evaluation.EvaluateDialki": "dialki.EvaluateDialki",
    "dialki.identify.IdentifyKnowledge": "dialki.IdentifyKnowledge",
    "dialki.inputs.InputConfig": "dialki.InputConfig",
    "dialki.job.TrainDialki": "dialki.TrainDialki",
    "dialki.model.DialkiConfig": "dialki.DialkiConfig",
    "dialki.objective.LossConfig": "dialki.LossConfig",
    "dialki.regularization.NoiseConfig": "dialki.NoiseConfig",
    "dialki.respond.GenerateResponses": "dialki.GenerateResponses",
    "dialki.response_data.MakeResponseData": "dialki.MakeResponseData",
    "dialki.search.SearchConfig": "dialki.SearchConfig",
    "dialki.BatchConfig": "dialki.DialkiBatchConfig",
    "dialki.trainer.BatchConfig": "dialki.DialkiBatchConfig",
    "dialki.world.dialogues.DialogueWorldConfig": "worlds.dialogue.DialogueWorldConfig",
    "dialki.world.make.MakeDialogueWorld": "worlds.dialogue.MakeDialogueWorld",
    "dialki.world.response_table.ResponseTable": "experiments.dialki.ResponseTable",
    "dialki.world.table.DialogueWorldTable": "experiments.dialki.DialogueWorldTable",
    "models.loading.PolicyConfig": "models.PolicyConfig",
    "models.loading.ValueConfig": "models.ValueConfig",
    "models.lora.LoraConfig": "models.LoraConfig",
    "models.tiny_bert.TinyBertConfig": "models.tiny.TinyBertConfig",
    "models.tiny_files.MakeTinyModels": "models.tiny.MakeTinyModels",
    "report.job.WriteReport": "report.Report",
    "report.sweep_results.ParetoAxes": "report.ParetoAxes",
    "report.sweep_results.SweepTable": "report.SweepTable",
    "retrieval.bm25.Bm25Config": "retrieval.Bm25Config",
    "retrieval.dense.DenseConfig": "retrieval.DenseConfig",
    "retrieval.encoder.EncoderConfig": "retrieval.EncoderConfig",
    "retrieval.jobs.BuildIndex": "retrieval.BuildIndex",
    "retrieval.jobs.SearchIndex": "retrieval.Search",
    "retrieval.nearest.IvfPqConfig": "retrieval.IvfPqConfig",
    "retrieval.opensearch.OpenSearchConfig": "retrieval.OpenSearchConfig",
    "retrieval.pyserini.PyseriniConfig": "retrieval.PyseriniConfig",
    "retrieval.ranking.RankingMetrics": "retrieval.RankingMetrics",
    "retrieval.recorded.RecordedConfig": "retrieval.RecordedConfig",
    "retrieval.search_server.SearchServerConfig": "retrieval.SearchServerConfig",
    "retrieval.subword.Bm25LightConfig": "retrieval.Bm25LightConfig",
    "runtime.optimizer.AdafactorConfig": "runtime.AdafactorConfig",
    "runtime.optimizer.OptimizerConfig": "runtime.OptimizerConfig",
    "runtime.processes.ProcessConfig": "runtime.ProcessConfig",
    "runtime.sinks.TrackingConfig": "runtime.TrackingConfig",
    "tasks.factworld.annotate.AnnotateFactWorld": "worlds.factworld.AnnotateFactWorld",
    "tasks.factworld.drift.MeasureDrift": "experiments.factworld.MeasureDrift",
    "tasks.factworld.evaluation.FactWorldOracle": "worlds.factworld.FactWorldOracle",
    "tasks.factworld.grid.FactWorldGrid": "experiments.factworld.FactWorldGrid",
    "tasks.factworld.make.MakeFactWorld": "worlds.factworld.MakeFactWorld",
    "tasks.factworld.results.FactWorldReport": "factworld.FactWorldReport",
    "tasks.factworld.results.FactWorldTable": "experiments.factworld.FactWorldTable",
    "tasks.factworld.tables.ablation.AblationTable": "experiments.factworld.AblationTable",
    "tasks.factworld.tables.aggregation.AggregationTable": "experiments.factworld.AggregationTable",
    "tasks.factworld.tables.best_of.BestOfTable": "experiments.factworld.BestOfTable",
    "tasks.factworld.tables.compat.CompatTable": "experiments.factworld.CompatTable",
    "tasks.factworld.tables.dynamics.DynamicsTable": "experiments.factworld.DynamicsTable",
    "tasks.factworld.tables.efficiency.EfficiencyTable": "experiments.factworld.EfficiencyTable",
    "tasks.factworld.tables.systems.SystemsTable": "experiments.factworld.SystemsTable",
    "tasks.factworld.world.WorldConfig": "worlds.factworld.WorldConfig",
    "tasks.factworld.writer.WriterConfig": "worlds.factworld.WriterConfig",
    "training.classifier.trainer.ClassifierBatchConfig": "training.classifier.ClassifierBatchConfig",
    "training.doctor.DoctorConfig": "preflight.DoctorConfig",
    "training.dpr.batches.DprSampling": "training.dpr.DprSampling",
    "training.dpr.trainer.DprBatchConfig": "training.dpr.DprBatchConfig",
    "training.evaluation_job.Evaluate": "inference.Evaluate",
    "training.generation.Generate": "inference.Generate",
    "training.generation.SampleOutputs": "inference.SampleOutputs",
    "training.inference.DecodingConfig": "inference.DecodingConfig",
    "training.ppo_config.CompatConfig": "training.ppo.CompatConfig",
    "training.ppo_config.KLConfig": "training.ppo.KLConfig",
    "training.ppo_config.PPOConfig": "training.ppo.PPOConfig",
    "training.ppo_job.PPOJob": "training.ppo.TrainPPO",
    "training.reweigh_job.RewardChange": "what_if.RewardChange",
    "training.reweigh_job.Reweigh": "what_if.Reweigh",
    "training.self_critical_config.SelfCriticalConfig": "training.self_critical.SelfCriticalConfig",
    "training.sft_job.SFTJob": "training.sft.TrainSFT",
}
_REWARD_MODELS = {
    "reward_models.completeness.CompletenessConfig": "reward_models.CompletenessConfig",
    "reward_models.inspection.InspectFeedback": "reward_models.InspectFeedback",
    "reward_models.job.RewardModelConfig": "reward_models.RewardModelConfig",
    "reward_models.job.TrainRewardModel": "reward_models.TrainRewardModel",
    "reward_models.scorers.SegmentScorer": "reward_models.SegmentScorer",
    "reward_models.scorers.SequenceScorer": "reward_models.SequenceScorer",
    "reward_models.tiny.MakeTinyRewardModels": "reward_models.MakeTinyRewardModels",
    "reward_models.BatchConfig": "reward_models.RewardBatchConfig",
    "reward_models.training.BatchConfig": "reward_models.RewardBatchConfig",
    "reward_models.trust_job.EvaluateRewardModel": "reward_models.EvaluateRewardModel",
}
_LEFT = {
    "finegrained_rlhf.annotation": ("finegrained_lab.experiments.annotation", ("JoinFeedback",)),
    "finegrained_rlhf.conqrr": ("finegrained_lab.experiments.conqrr", ("WriteCanardCorpus",)),
    "finegrained_rlhf.detoxification": (
        "finegrained_lab.experiments.detox",
        ("SplitByLabel", "SplitPrompts", "WriteLabelWords", "WriteScoredTexts"),
    ),
    "finegrained_rlhf.experiments.factworld": ("finegrained_rlhf.factworld", ("FactWorldReport",)),
    "finegrained_rlhf.feedback.gold": ("finegrained_lab.experiments.factworld", ("WriteGoldAnswers",)),
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
}


def _in_its_room(name: str) -> str:
    """A class of version 0.2 under the name of the room that it moved to."""
    old = next((old for old in _ROOMS if name.startswith(old)), None)
    return name if old is None else _ROOMS[old] + name.removeprefix(old)


MOVED: Mapping[str, str] = {
    **{f"finegrained_rlhf.{old}": _in_its_room(f"finegrained_rlhf.{new}") for old, new in _IN_THIS_PACKAGE.items()},
    **_REWARD_MODELS,
    **{f"{old}.{name}": f"{new}.{name}" for old, (new, names) in _LEFT.items() for name in names},
}
"""`_target_` of an older version → its name today; what moved with its whole room is in `_ROOMS`."""


def current_name(name: str) -> str:
    """What a class that a configuration names is called today."""
    return MOVED.get(name) or _in_its_room(name)


def with_current_names(config: Any) -> Any:
    """A configuration in plain containers, in which every old `_target_` has its current name."""
    if isinstance(config, Mapping):
        return {
            key: current_name(value) if key == "_target_" and isinstance(value, str) else with_current_names(value)
            for key, value in config.items()
        }
    return [with_current_names(item) for item in config] if isinstance(config, list) else config
