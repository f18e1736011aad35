"""Training reward models: it learns, resumes bit by bit, and no batch, process or label is miscounted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feedback_samples import record
from reward_model_samples import cue_records, enlarged, prompt, save_bert, save_llama, save_longformer
from share_toy import Share

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, DataError, ModelError
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import RewardModelConfig
from reward_models.data.examples import LabelSettings, build_examples, output_inputs
from reward_models.encoders.inputs import RewardInputEncoder, pad_inputs
from reward_models.encoders.models import load_reward_model, new_reward_model
from reward_models.job import TrainRewardModel
from reward_models.kinds import COMPLETENESS, FACTUALITY, PREFERENCE, RELEVANCE, kind_named
from reward_models.record import LEAST_STD, RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer
from reward_models.train import RewardModelTrainer, in_batches, with_moments


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reward_training")
    save_longformer(path / "encoder")
    save_llama(path / "llama")
    write_feedback(path / "feedback.json", cue_records(40))
    return path


def job(
    folder: Path, output: Path, kind: str = "relevance", steps: int = 40, base: str = "encoder", **changes: Any
) -> TrainRewardModel:
    config = RewardModelConfig(
        kind,
        OptimizerConfig(lr=5e-3, weight_decay=0.01, warmup_ratio=0.1, max_grad_norm=1.0),
        BatchConfig(batch_size=8, eval_batch_size=16),
        steps=steps,
        global_attention="first" if kind == "preference" else "none",
    )
    fields = {"validate_every": 10, "checkpoint_every": 10, "held_out": 0.25, "reward_model": config, **changes}
    return TrainRewardModel(
        data=str(folder / "feedback.json"), model=str(folder / base), output_dir=str(output), **fields
    )


@pytest.mark.parametrize("base", ["encoder", "llama"])
def test_segment_model_learns_a_cue(folder: Path, tmp_path: Path, base: str) -> None:
    job(folder, tmp_path / "run", base=base).run()
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert results["dev"]["accuracy"] == 1.0 and results["dev"]["f1_has_error"] == 1.0
    assert results["train_examples"] == 30 and results["dev_examples"] == 10 and results["mean"] is None
    text = "It is the good word one two. It is the bad word one two."
    scores = SegmentScorer(str(tmp_path / "run")).score([prompt(passages=())], [text])
    assert scores.values == ((1.0, -1.0),)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 41))


def test_labels_of_other_texts_teach_nothing(folder: Path) -> None:
    """A decoder-only model learns the cue from the labels: dealt out anew, the same labels leave it at chance."""
    torch.manual_seed(0)
    model = new_reward_model(folder / "llama", RewardModelRecord("relevance"))
    given = build_examples(cue_records(40), LabelSettings(RELEVANCE), model.input_encoder(), SpacySegmenter())
    labels = np.random.default_rng(0).permutation([label for example in given for label in example.labels])
    rows = [tuple(row.tolist()) for row in labels.reshape(len(given), 3)]
    shuffled = [replace(example, labels=row) for example, row in zip(given, rows, strict=True)]
    rate = OptimizerConfig(lr=5e-3, warmup_ratio=0.1)
    config = RewardModelConfig("relevance", rate, BatchConfig(8), steps=40)
    one = TrainRewardModel(output_dir="", data="", model="", reward_model=config)
    made = RewardModelTrainer(one, model, shuffled, given[:8], Processes())
    for step in range(1, 41):
        made.train_step(step)
    assert 0.25 < made.validate(40)["accuracy"] < 0.75


@pytest.mark.parametrize("base", ["encoder", pytest.param("llama", marks=pytest.mark.slow)])
def test_pair_model_learns_a_cue_and_saves_its_moments(folder: Path, tmp_path: Path, base: str) -> None:
    job(folder, tmp_path / "run", "preference", steps=60, base=base).run()
    results = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert results["dev"]["pair_accuracy"] > 0.9
    assert results["dev"]["score_std"] > LEAST_STD and results["collapsed"] is False
    model = load_reward_model(tmp_path / "run")
    assert (model.record.mean, model.record.std) == (results["mean"], results["std"]) and results["std"] > 0
    answers = ["It is the good word. " * 3, "It is the bad word. " * 3]
    scores = SequenceScorer(str(tmp_path / "run")).score([prompt(passages=())] * 2, [a.strip() for a in answers])
    assert scores.values[0][0] > scores.values[1][0]
    job(folder, tmp_path / "run", "preference", steps=60, base=base).run()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == results


def test_moments_are_those_of_all_training_outputs(folder: Path) -> None:
    model = new_reward_model(folder / "encoder", RewardModelRecord("completeness", "first"))
    records = cue_records(6)
    found = with_moments(model, records, 5, Processes())
    with torch.no_grad():
        inputs = output_inputs(COMPLETENESS, records, RewardInputEncoder(model.tokenizer, model.max_length))
        scores = [float(model.answer_scores(pad_inputs([item], 0))) for item in inputs]
    assert len(scores) == 24
    assert found.mean == pytest.approx(float(np.mean(scores)), abs=1e-5)
    assert found.std == pytest.approx(float(np.std(scores)), rel=1e-3)
    with torch.no_grad():
        model.model.classifier.out_proj.weight.zero_()
    assert with_moments(model, records, 5, Processes()).std == 1.0  # equal scores: nothing is divided by zero


def test_a_collapsed_model_is_chosen_after_every_other(folder: Path) -> None:
    """Rounding orders pairs as well as anything: the spread decides, not the accuracy."""
    model = enlarged(new_reward_model(folder / "encoder", RewardModelRecord("preference", "first")))
    examples = build_examples(cue_records(8), LabelSettings(PREFERENCE), model.input_encoder(), SpacySegmenter())
    config = RewardModelConfig("preference", OptimizerConfig(lr=1e-3), BatchConfig(8), steps=1)
    one = TrainRewardModel(output_dir="", data="", model="", reward_model=config)
    made = RewardModelTrainer(one, model, examples, examples, Processes())
    alive = made.validate(0)
    assert alive["score_std"] > LEAST_STD and alive["score"] == alive["accuracy"]
    made.selected_by = "loss"
    assert made.validate(0)["score"] == -alive["loss"]
    made.selected_by = "accuracy"
    with torch.no_grad():
        model.model.classifier.out_proj.weight *= 1e-4
    collapsed = made.validate(0)
    assert 0 < collapsed["score_std"] < LEAST_STD
    assert collapsed["score"] == pytest.approx(collapsed["accuracy"] - 1.0) and collapsed["score"] <= alive["score"]


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step_{step}" / "model" / "model.safetensors").read_bytes()


def lines(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("relevance", "encoder"),
        pytest.param("preference", "encoder", marks=pytest.mark.slow),
        pytest.param("relevance", "llama", marks=pytest.mark.slow),
    ],
)
def test_resumed_run_equals_uninterrupted_run(folder: Path, tmp_path: Path, kind: str, base: str) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    job(folder, whole, kind, steps=20, base=base, checkpoint_every=5, keep_checkpoints=9).run()
    one = job(folder, parts, kind, steps=20, base=base, checkpoint_every=5, keep_checkpoints=9)
    trainer_step = RewardModelTrainer.train_step

    def killed(self: RewardModelTrainer, step: int) -> dict[str, float]:
        if step == 13:
            raise KeyboardInterrupt
        return trainer_step(self, step)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RewardModelTrainer, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RewardModelTrainer, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    assert (parts / "metrics.json").is_file() and not (parts / "trust.json").exists()  # pipelines look at the latter
    one.run()
    assert (parts / "trust.json").is_file()
    for name in ("metrics.json", "model/reward_model.json"):
        assert (parts / name).read_text(encoding="utf-8") == (whole / name).read_text(encoding="utf-8")
    for step in (0, 5, 10, 15, 20):
        assert weights(whole, step) == weights(parts, step)
    assert weights(whole, 0) != weights(whole, 20)
    assert lines(whole / "metrics.jsonl") == lines(parts / "metrics.jsonl")
    assert lines(whole / "eval.jsonl") == lines(parts / "eval.jsonl")


def trainer(
    folder: Path,
    kind: str,
    batches: BatchConfig,
    records: Sequence = (),
    base: str = "encoder",
    processes: Processes | None = None,
) -> RewardModelTrainer:
    torch.manual_seed(0)
    model = enlarged(new_reward_model(folder / base, RewardModelRecord(kind, "first")))
    examples = build_examples(
        records or cue_records(12), LabelSettings(kind_named(kind)), model.input_encoder(), SpacySegmenter()
    )
    config = RewardModelConfig(kind, OptimizerConfig(lr=1e-2, eps=1e-4), batches, steps=10)
    one = TrainRewardModel(output_dir="", data="", model="", reward_model=config)
    return RewardModelTrainer(one, model, examples, examples, processes or Processes())


@pytest.mark.parametrize("base", ["encoder", "llama"])
@pytest.mark.parametrize("kind", ["factuality", "preference"])
def test_micro_batches_make_no_difference(folder: Path, kind: str, base: str) -> None:
    whole = trainer(folder, kind, BatchConfig(batch_size=11), base=base)
    parts = trainer(folder, kind, BatchConfig(batch_size=11, micro_batch_size=2, eval_batch_size=1), base=base)
    before = [p.detach().clone() for p in whole.model.parameters()]
    for step in (1, 2, 3):
        a, b = whole.train_step(step), parts.train_step(step)
        assert a == pytest.approx(b, abs=1e-5, rel=1e-5)
    moved = max(float((p - q).detach().abs().max()) for p, q in zip(whole.model.parameters(), before, strict=True))
    apart = max(
        float((p - q).detach().abs().max())
        for p, q in zip(whole.model.parameters(), parts.model.parameters(), strict=True)
    )
    assert moved > 1e-3 and apart < 1e-3 * moved
    assert whole.validate(3) == pytest.approx(parts.validate(3), abs=1e-4)


@pytest.mark.parametrize("base", ["encoder", "llama"])
@pytest.mark.parametrize("kind", ["relevance", "preference"])
def test_gradients_of_processes_add_up(folder: Path, kind: str, base: str) -> None:
    def gradients(rank: int, count: int) -> tuple[list[torch.Tensor], dict[str, float]]:
        share = Share(rank, count)
        made = trainer(folder, kind, BatchConfig(batch_size=12), base=base, processes=share)
        made.train_step(1)
        return share.gradients, made.validate(1)

    whole, _ = gradients(0, 1)
    parts = [gradients(rank, 3)[0] for rank in range(3)]
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    assert sum(any(bool(g.any()) for g in part) for part in parts) > 1  # more than one process has something to do
    for i, expected in enumerate(whole):
        assert torch.allclose(sum(part[i] for part in parts), expected, atol=1e-6)


def test_a_checkpoint_of_another_architecture_is_refused(folder: Path, tmp_path: Path) -> None:
    made = trainer(folder, "relevance", BatchConfig(24))
    new_reward_model(save_bert(tmp_path / "bert"), RewardModelRecord("relevance")).save(tmp_path / "step_1" / "model")
    with pytest.raises(CheckpointError, match="step_1: holds a RewardModel of another architecture than this run's"):
        made.load_state(tmp_path / "step_1")
    with pytest.raises(ModelError, match="no model here"):
        made.load_state(tmp_path / "step_2")


def test_in_batches_covers_everything_in_order(folder: Path) -> None:
    examples = trainer(folder, "preference", BatchConfig(24)).plan._examples
    for size in (1, 4, 7, 1000):
        runs = list(in_batches(examples, size))
        assert [e for run in runs for e in run] == list(examples)
        assert all(len(run) == 1 or sum(e.items for e in run) <= size for run in runs)
    assert list(in_batches([], 3)) == []


def test_nothing_to_train_on_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    ties = [record("It is cold.", preferences=(0,) * 6, name=f"r{i}") for i in range(4)]
    write_feedback(tmp_path / "ties.json", ties)
    one = replace(job(folder, tmp_path / "run", "preference"), data=str(tmp_path / "ties.json"))
    with pytest.raises(DataError, match=r"ties\.json.*no record gives a preference label"):
        one.run()
    with pytest.raises(DataError, match="too few to hold some out"):
        write_feedback(tmp_path / "one.json", ties[:1])
        replace(one, data=str(tmp_path / "one.json")).run()
    assert not (tmp_path / "run").exists()


def test_labels_of_one_class_are_refused(folder: Path, tmp_path: Path) -> None:
    """Without one error, and with nothing but errors."""
    text = "It is cold and wide here."
    for errors, only in (([], "no error"), ([(text, "Irrelevant")], "an error")):
        write_feedback(tmp_path / "alike.json", [record(text, errors, name=f"r{i}") for i in range(12)])
        one = replace(job(folder, tmp_path / "run", "relevance"), data=str(tmp_path / "alike.json"))
        with pytest.raises(DataError, match=rf"alike\.json: every relevance label .* is '{only}': with one class"):
            one.run()
        assert not (tmp_path / "run").exists()


def test_training_without_a_labelled_validation_example_exports_the_last(folder: Path, tmp_path: Path) -> None:
    write_feedback(tmp_path / "ties.json", [record("It is cold.", preferences=(0,) * 6)])
    one = job(folder, tmp_path / "run", "preference", steps=3, validation_data=str(tmp_path / "ties.json"))
    assert one.run().best_step == 3
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["dev"] == {}


def test_epochs_and_total_steps(folder: Path, tmp_path: Path) -> None:
    config = replace(job(folder, tmp_path).reward_model, steps=None, epochs=2)
    one = job(folder, tmp_path / "run", reward_model=config, validate_every=None)
    assert one.run().step == 8  # 30 records in batches of 8, twice
    assert [row["step"] for row in lines(tmp_path / "run" / "eval.jsonl")] == [0, 4, 8]
    assert replace(one, total_steps=2, output_dir=str(tmp_path / "short")).run().step == 2


def test_bad_settings_are_refused(folder: Path, tmp_path: Path) -> None:
    good = job(folder, tmp_path).reward_model
    for change in ({"steps": None}, {"epochs": 2}, {"steps": 0}, {"max_length": 1}):
        with pytest.raises(ConfigError):
            replace(good, **change)
    for change in ({"held_out": -0.1}, {"held_out": 1.0}, {"total_steps": 0}):
        with pytest.raises(ConfigError):
            job(folder, tmp_path, **change)
    with pytest.raises(ConfigError):
        BatchConfig(batch_size=0)
    with pytest.raises(ModelError):
        replace(job(folder, tmp_path / "run"), model=str(tmp_path / "nowhere")).run()


def test_real_feedback_gives_the_published_counts(shared_data: Path, folder: Path) -> None:
    from finegrained_rlhf.feedback.reading import read_feedback

    records = read_feedback(shared_data / "qa_feedback" / "dev_feedback.json")
    model = new_reward_model(folder / "encoder", RewardModelRecord("relevance"))
    encoder = RewardInputEncoder(model.tokenizer, 2048)
    found = build_examples(records, LabelSettings(RELEVANCE), encoder, SpacySegmenter("rules"))
    labels = [label for example in found for label in example.labels]
    assert (len(found), labels.count(1), labels.count(0)) == (400, 1131, 1052)
    assert all(len(e.inputs[0].separators) == len(e.labels) for e in found)
    found = build_examples(records, LabelSettings(FACTUALITY), encoder, SpacySegmenter("rules"))
    labels = [label for example in found for label in example.labels]
    assert (len(found), labels.count(1), labels.count(0)) == (347, 218, 418)
    pairs = build_examples(records, LabelSettings(COMPLETENESS), encoder, SpacySegmenter("rules"))
    assert sum(len(example.pairs) for example in pairs) == 859


def test_a_checkpoint_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    """A model of answers has one score where a model of segments has two labels."""
    ours = trainer(folder, "preference", BatchConfig(24))
    (tmp_path / "model").mkdir()
    ours.model_to_save()(tmp_path / "model")
    ours.state_to_save()(tmp_path)
    ours.load_state(tmp_path)
    other = trainer(folder, "relevance", BatchConfig(24))
    with pytest.raises(CheckpointError, match="holds a RewardModel of another architecture than this run's"):
        other.load_state(tmp_path)
