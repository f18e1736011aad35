"""Training DIALKI: it learns, resumes bit by bit, and neither micro-batches nor processes change a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dialki_toy import dialogue, encoded, job, passage, save_bert, tiny_dialki, toy_examples
from share_toy import Share

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, DataError, ModelError
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.jobs import document_passages, spoken_dialogue
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.model.model import load_dialki
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialki.scores import score_answer
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig, TrainDialki
from finegrained_rlhf.dialki.training.trainer import DialkiTrainer
from finegrained_rlhf.dialogue.records import Passage, Turn
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dialki")
    save_bert(path / "bert", layers=1)
    rows = []
    for example in toy_examples():
        answer = Turn("agent", "it is .", example.gold[0])
        rows.append(dialogue_row(example.id, (*example.turns, answer), example.passages, example.unseen))
    write_dialogues(path / "dialogues.jsonl", rows)
    return path


def trainer(
    folder: Path,
    batches: DialkiBatchConfig,
    losses: LossConfig | None = None,
    processes: Processes | None = None,
    **changes: Any,
) -> DialkiTrainer:
    model = tiny_dialki(folder / "bert", **changes)
    examples = encoded(model, toy_examples(), training=True)
    optimizer = OptimizerConfig(lr=1e-2, eps=1e-4)
    settings = {"optimizer": optimizer, "batches": batches, "losses": losses or LossConfig(1.0, 0.5)}
    one = TrainDialki(output_dir="", data="", model="", total_steps=10, **settings)
    return DialkiTrainer(one, model, examples, examples, processes or Processes())


def lines(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(run: Path, step: int) -> tuple[bytes, bytes]:
    model = run / "checkpoints" / f"step_{step}" / "model"
    return (model / "model.safetensors").read_bytes(), (model / "heads.safetensors").read_bytes()


# A run -----------------------------------------------------------------------------------------------------------


def test_it_learns_and_the_best_model_answers_alike(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = job(folder, run, total_steps=60, validate_every=15, checkpoint_every=60).run()
    rows, found = lines(run / "metrics.jsonl"), lines(run / "eval.jsonl")
    assert rows[-1]["loss"] < 0.3 * rows[0]["loss"] and rows[0]["loss/adversarial"] > 0
    metrics = json.loads((run / "metrics.json").read_text())
    best = max(found, key=lambda row: row["score"])
    assert result.best_score == best["score"] == metrics["validation"]["all"]["exact_match"] > 0.6
    assert metrics["validation"].keys() >= {"all", "seen", "unseen", "context/short", "document/short"}
    read = metrics["data"]["train"]["inputs"]
    assert (read["examples"], read["unlabelled"], metrics["train_examples"]) == (12, 1, 11)
    gamma = metrics["threshold"]["gamma"]
    finder = KnowledgeFinder.load(run, batch_size=5)
    assert finder.model.config.threshold == gamma and 0 < gamma < 1
    examples = toy_examples()
    answers = finder.identify(examples)
    assert [answer.id for answer in answers] == [example.id for example in examples]
    exact = [score_answer(e, a.knowledge.passage, a.text).exact for e, a in zip(examples, answers, strict=True)]
    assert sum(exact) >= 3
    one = KnowledgeFinder.load(run, batch_size=1).identify(examples)
    for answer, alone, example in zip(answers, one, examples, strict=True):
        assert answer.knowledge == alone.knowledge and answer.score == pytest.approx(alone.score, abs=1e-5)
        assert answer.text == example.text_of(answer.knowledge)
        assert sum(answer.probabilities) == pytest.approx(1.0) and answer.probability == max(answer.probabilities)
        assert answer.score == pytest.approx(answer.begin + answer.end)
        row = json.loads(json.dumps(answer.to_json(example)))
        assert (
            example.passages[row["passage"]].id == row["passage_id"] and row["passages"][0]["id"] == row["passage_id"]
        )


def test_resumed_run_equals_uninterrupted_run(folder: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    job(folder, whole, keep_checkpoints=9, dropout=0.1).run()
    one = job(folder, parts, keep_checkpoints=9, dropout=0.1)
    train_step = DialkiTrainer.train_step

    def killed(self: DialkiTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return train_step(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DialkiTrainer, "train_step", killed)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    one.run()
    for step in (0, 2, 4, 6):
        assert weights(whole, step) == weights(parts, step)
    assert weights(whole, 0) != weights(whole, 6)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert lines(whole / name) == lines(parts / name)
    assert json.loads((whole / "metrics.json").read_text()) == json.loads((parts / "metrics.json").read_text())
    assert job(folder, parts, keep_checkpoints=9, dropout=0.1).run().already_done


# A step ----------------------------------------------------------------------------------------------------------


def test_micro_batches_make_no_difference(folder: Path) -> None:
    whole = trainer(folder, DialkiBatchConfig(batch_size=5, passages=2))
    parts = trainer(
        folder, DialkiBatchConfig(batch_size=5, passages=2, micro_batch_size=2, eval_batch_size=1, group_size=1)
    )
    before = [p.detach().clone() for p in whole.model.parameters()]
    for step in (1, 2, 3):
        a, b = whole.train_step(step), parts.train_step(step)
        assert {k: v for k, v in a.items() if "time" not in k} == pytest.approx(
            {k: v for k, v in b.items() if "time" not in k}, rel=1e-3, abs=1e-4
        )
    pairs = list(zip(whole.model.parameters(), parts.model.parameters(), strict=True))
    moved = max(float((p - q).detach().abs().max()) for (p, _), q in zip(pairs, before, strict=True))
    assert moved > 1e-3 and max(float((p - q).detach().abs().max()) for p, q in pairs) < 1e-2 * moved
    assert whole.validate(3) == pytest.approx(parts.validate(3), abs=1e-4)


def test_gradients_of_processes_add_up(folder: Path) -> None:
    def gradients(rank: int, count: int) -> Sequence[torch.Tensor]:
        share = Share(rank, count)
        trainer(folder, DialkiBatchConfig(batch_size=5, passages=2), processes=share).train_step(1)
        return share.gradients

    whole = gradients(0, 1)
    parts = [gradients(rank, 3) for rank in range(3)]
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    for i, expected in enumerate(whole):
        assert torch.allclose(sum(part[i] for part in parts), expected, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.5)])
def test_each_loss_has_a_switch(folder: Path, alpha: float, beta: float) -> None:
    made = trainer(folder, DialkiBatchConfig(batch_size=3), LossConfig(alpha, beta), contextualize=False)
    history = {name: p.detach().clone() for name, p in made.model.heads.history.named_parameters()}
    row = made.train_step(1)
    assert (row["loss/history"] > 0) == (alpha > 0) and (row["loss/adversarial"] > 0) == (beta > 0)
    total = row["loss/passage"] + row["loss/begin"] + row["loss/end"]
    total += alpha * row["loss/history"] + beta * row["loss/adversarial"]
    assert row["loss"] == pytest.approx(total, rel=1e-5)
    moved = any(not torch.equal(p, history[name]) for name, p in made.model.heads.history.named_parameters())
    assert moved == (alpha > 0)


def test_a_step_in_bf16(folder: Path) -> None:
    made = trainer(folder, DialkiBatchConfig(batch_size=3))
    made.processes = made.finder.processes = Processes(ProcessConfig("bf16"))
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    row = made.train_step(1)
    exact = trainer(folder, DialkiBatchConfig(batch_size=3)).train_step(1)
    for name in ("loss/passage", "loss/begin", "loss/end", "loss/history"):
        assert row[name] == pytest.approx(exact[name], rel=0.05)
    assert 0 < row["loss/adversarial"] < 3 and row["gradient_norm"] == pytest.approx(exact["gradient_norm"], rel=0.2)
    assert all(p.dtype == torch.float32 for p in made.model.parameters())
    assert any(not torch.equal(p, before[name]) for name, p in made.model.named_parameters())
    assert set(made.validate(1)) == {"score", "examples", "exact_match", "f1", "passage_accuracy"}


# Bad input -------------------------------------------------------------------------------------------------------


def test_nothing_to_train_on_is_one_clear_error(folder: Path, tmp_path: Path) -> None:
    rows = [dialogue_row("a", (Turn("user", "hello"), Turn("agent", "hi")), [passage(0)])]
    write_dialogues(tmp_path / "bare.jsonl", rows)
    with pytest.raises(DataError, match=r"bare\.jsonl: no dialogue with gold is left to train on .*1 unlabelled"):
        replace(job(folder, tmp_path / "run"), data=str(tmp_path / "bare.jsonl")).run()
    with pytest.raises(ModelError, match="no model here"):
        replace(job(folder, tmp_path / "run"), model=str(tmp_path)).run()
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_architecture_is_refused(folder: Path, tmp_path: Path) -> None:
    job(folder, tmp_path / "run", total_steps=1, validation_data=None).run()
    assert load_dialki(tmp_path / "run").config.threshold is None
    other = job(folder, tmp_path / "run", total_steps=2, dialki=DialkiConfig(contextualize=False))
    with pytest.raises(ConfigError, match="dialki.contextualize: True -> False"):
        other.run()
    with pytest.raises(CheckpointError, match="another architecture"):
        replace(other, resume_changed="allow").run()


@pytest.mark.parametrize(
    "change",
    [
        {"history_labels": "some"},
        {"epochs": 0},
        {"dropout": 1.0},
        {"validation_examples": 0},
        {"total_steps": 0},
        {"format": "xml"},
        {"documents": "x.json"},
        {"dialki": DialkiConfig(parity=True)},
    ],
)
def test_bad_settings_are_refused(folder: Path, tmp_path: Path, change: dict) -> None:
    with pytest.raises(ConfigError):
        job(folder, tmp_path, **change)
    with pytest.raises(ConfigError):
        LossConfig(history=-1.0)
    with pytest.raises(ConfigError, match="gold: expected one of one, all, each"):
        LossConfig(gold="several")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        DialkiBatchConfig(passages=0)


def test_a_document_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("The lake froze.\nIt is wide. \n\n# Fish\n\nThere are pikes.\n## Boats\nNone. Why?\n")
    assert document_passages(path) == [
        {"title": "", "text": "The lake froze. It is wide."},
        {"title": "Fish", "text": "There are pikes."},
        {"title": "Boats", "text": "None. Why?"},
    ]
    (example,) = spoken_dialogue(["Is it cold?", "Yes.", "And wide?"], path)
    assert [turn.role for turn in example.turns] == ["user", "agent", "user"]
    assert example.passages[0] == Passage("0", "", ("The lake froze.", "It is wide."))
    assert [turn.role for turn in spoken_dialogue(["Hello.", "Is it cold?"], path)[0].turns] == ["agent", "user"]
    path.write_text("\n \n")
    with pytest.raises(DataError, match="page.md: holds no paragraph"):
        document_passages(path)
    with pytest.raises(DataError, match="no such file"):
        document_passages(tmp_path / "nowhere")
    path.write_text("One.")
    with pytest.raises(DataError, match=r"page\.md.*turns\[0\]\.text"):
        spoken_dialogue([" "], path)


def test_the_finder_counts_what_it_cuts(folder: Path) -> None:
    finder = KnowledgeFinder(tiny_dialki(folder / "bert", inputs=InputConfig(60, 20)))
    finder.identify([dialogue(history=(None,) * 5)] * 2)
    assert finder.report.contexts_cut == 2 and finder.report.examples == 2


def test_the_search_follows_its_settings(folder: Path) -> None:
    settings = SearchConfig(max_spans=1, score_by="logits", max_passages=2)
    finder = KnowledgeFinder(tiny_dialki(folder / "bert", search=settings, threshold=0.0))
    usual = KnowledgeFinder(tiny_dialki(folder / "bert"))
    examples = [dialogue(name, gold=()) for name in "abc"]
    for answer, other in zip(finder.identify(examples), usual.identify(examples), strict=True):
        assert answer.searched == (0, 1) and other.searched == (0, 1, 2, 3)
        assert answer.knowledge.begin == answer.knowledge.end and set(answer.passages) == {0, 1}
        assert answer.score != pytest.approx(answer.begin + answer.end)  # logits, not probabilities
        assert other.passages == (other.knowledge.passage,)
