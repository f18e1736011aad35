"""Supervised fine-tuning: its loss, its invariances, resuming, and what it refuses."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.records import Prompt, pad_rows
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.inference.evaluation import evaluate_policy
from finegrained_rlhf.inference.generator import Answering, PolicyGenerator
from finegrained_rlhf.metrics import rouge_lsum
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyGPT2Config, TinyLlamaConfig, TinyT5Config
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import run_loop
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.templates import task_text
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.sft.trainer import SFTTrainer, demonstrations

WORDS = ("red", "blue", "green", "plum", "pear", "lime", "oval", "cube")


def example(number: int) -> QAExample:
    first, second = WORDS[number % 8], WORDS[(3 * number + 1) % 8]
    passage = Passage("", f"Thing {number}", (f"Thing {number} is {first}. It likes {second}.",))
    question = f"What is thing {number}?"
    answer = f"It is {first}." if number % 2 else f"It is {first} and it likes {second}."
    return QAExample(f"x-{number}", question, task_text(question, [passage]), (answer, "another"), (passage,))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven examples, three for validation, and tiny models."""
    path = tmp_path_factory.mktemp("sft")
    write_examples(path / "train.json", [example(i) for i in range(11)])
    write_examples(path / "dev.json", [example(i) for i in range(20, 23)])
    MakeTinyModels(
        data=str(path / "train.json"),
        output_dir=str(path / "models"),
        t5=TinyT5Config(d_model=16, d_ff=32, num_layers=1, num_heads=2),
        gpt2=TinyGPT2Config(d_model=16, num_layers=1, num_heads=2),
        llama=TinyLlamaConfig(16, 32, num_layers=1, num_heads=2),
    ).run()
    return path


def job(files: Path, output: Path, **changes: object) -> TrainSFT:
    settings: dict = {
        "output_dir": str(output),
        "data": str(files / "train.json"),
        "validation_data": str(files / "dev.json"),
        "policy": PolicyConfig(str(files / "models/t5")),
        "optimizer": OptimizerConfig(lr=1e-2, warmup_steps=1),
        "total_steps": 6,
        "max_answer_tokens": 24,
        "validate_every": 3,
        "checkpoint_every": 2,
        "processes": ProcessConfig(threads=1),
    }
    return TrainSFT(**settings | changes)


def parameters(trainer: SFTTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.policy.model.named_parameters()}


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_the_loss_is_transformers_own_mean_over_answer_tokens(files: Path, tmp_path: Path, kind: str) -> None:
    sft = job(files, tmp_path, policy=PolicyConfig(str(files / "models" / kind)), batch_size=5, dropout=0.0)
    trainer = sft.build(Processes())
    model, data = copy.deepcopy(trainer.policy.model).eval(), trainer.data
    metrics = trainer.train_step(1)
    from finegrained_rlhf.training.order import items_of_step

    total, tokens = 0.0, 0
    for item in items_of_step(data, 1, 5, sft.seed):  # one by one: nothing is padded here
        if kind == "t5":
            inputs = torch.tensor([item.prompt.input_ids])
            labels = torch.tensor([item.answer_ids])
        else:
            inputs = torch.tensor([item.prompt.input_ids + item.answer_ids])
            labels = torch.tensor([(-100,) * len(item.prompt.input_ids) + item.answer_ids])
        total += float(model(input_ids=inputs, labels=labels).loss.detach()) * len(item.answer_ids)
        tokens += len(item.answer_ids)
    assert metrics["tokens"] == tokens
    assert metrics["loss"] == pytest.approx(total / tokens, abs=1e-5)


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_micro_batches_do_not_change_a_step(files: Path, tmp_path: Path, kind: str) -> None:
    results = []
    for size in (1, 3, 8):
        model, sizes = PolicyConfig(str(files / "models" / kind)), {"batch_size": 8, "micro_batch_size": size}
        trainer = job(files, tmp_path, policy=model, dropout=0.0, **sizes).build(Processes())
        start = parameters(trainer)
        for step in (1, 2, 3):
            trainer.train_step(step)
        results.append(parameters(trainer))
        assert max(float((results[-1][name] - start[name]).abs().max()) for name in start) > 1e-3
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, atol=1e-5, rtol=0)


@pytest.mark.needs("spacy", "evaluate")
def test_it_learns_the_demonstrations(files: Path, tmp_path: Path) -> None:
    sft = job(files, tmp_path, total_steps=60, batch_size=11, validate_every=60, checkpoint_every=60, dropout=0.0)
    assert sft.run().step == 60
    losses = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.needs("spacy", "evaluate")
def test_a_run_exports_its_best_policy_by_rouge_lsum(files: Path, tmp_path: Path) -> None:
    sft = job(files, tmp_path, total_steps=12)
    result = sft.run()
    scores = {row["step"]: row["score"] for row in map(json.loads, (tmp_path / "eval.jsonl").read_text().splitlines())}
    assert sorted(scores) == [0, 3, 6, 9, 12]
    assert result.best_score == max(scores.values()) and scores[result.best_step] == result.best_score
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    answers, references = [], []
    for number in range(20, 23):
        item = example(number)
        ids = tokenizer(item.text, return_tensors="pt").input_ids
        output = model.generate(ids, max_new_tokens=24, do_sample=False, num_beams=1)
        answers.append(tokenizer.decode(output[0], skip_special_tokens=True))
        references.append(list(item.references))
    assert rouge_lsum(answers, references) == pytest.approx(result.best_score, abs=1e-6)


@pytest.mark.needs("spacy", "evaluate")
@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.slow), LoraConfig(rank=2, dropout=0.1)])
def test_a_resumed_run_is_bit_identical_with_dropout_on(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: LoraConfig | None
) -> None:
    policy = PolicyConfig(str(files / "models/t5"), lora=lora)
    job(files, tmp_path / "whole", policy=policy, dropout=0.2).run()

    original = SFTTrainer.train_step

    def interrupted(self: SFTTrainer, step: int) -> dict[str, float]:
        if step == 4:
            raise KeyboardInterrupt
        return original(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(SFTTrainer, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job(files, tmp_path / "cut", policy=policy, dropout=0.2).run()
    job(files, tmp_path / "cut", policy=policy, dropout=0.2).run()
    for name in ("checkpoints/step_4", "checkpoints/step_6"):
        for file in ("policy/model.safetensors", "optimizer.safetensors"):
            ours = (tmp_path / "cut" / name / file).read_bytes()
            assert ours == (tmp_path / "whole" / name / file).read_bytes(), (name, file)
    assert _rows(tmp_path / "cut") == _rows(tmp_path / "whole")
    start, end = (tmp_path / f"whole/checkpoints/step_{step}/policy/model.safetensors" for step in (0, 6))
    assert start.read_bytes() != end.read_bytes()


def _rows(run: Path) -> list[dict]:
    rows = []
    for name in ("metrics.jsonl", "eval.jsonl"):
        rows += [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


@pytest.mark.needs("spacy", "evaluate")
def test_a_checkpoint_of_another_architecture_is_refused_and_nothing_lost(files: Path, tmp_path: Path) -> None:
    job(files, tmp_path / "run").run()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    MakeTinyModels(
        data=str(files / "train.json"),
        output_dir=str(tmp_path / "models"),
        t5=TinyT5Config(d_model=32, d_ff=32, num_layers=1, num_heads=2),
    ).run()
    other = PolicyConfig(str(tmp_path / "models/t5"))
    with pytest.raises(ConfigError, match=r"began with other values: policy\.path"):
        job(files, tmp_path / "run", policy=other, total_steps=9).run()
    with pytest.raises(CheckpointError, match="another architecture"):
        job(files, tmp_path / "run", policy=other, total_steps=9, resume_changed="allow").run()
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.needs("spacy", "evaluate")
def test_dropout_is_set_everywhere_and_off_in_validation(files: Path, tmp_path: Path) -> None:
    policy = open_policy(files / "models/t5")
    prompt = Prompt("p", "t", tuple(range(3, 12)))
    ids, mask = pad_rows([(4, 5, 1)], policy.pad_id)

    def twice() -> tuple[torch.Tensor, torch.Tensor]:
        one, two = (policy.logprobs(policy.encode([prompt]), torch.tensor([0]), ids, mask).logprobs for _ in range(2))
        return one, two

    reference = twice()[0]
    policy.train()
    set_dropout(policy.model, 0.0)
    assert torch.equal(*twice()) and torch.equal(twice()[0], reference)
    set_dropout(policy.model, 0.5)
    assert not torch.equal(*twice())
    trainer = job(files, tmp_path, dropout=0.5).build(Processes())
    trainer.train_step(1)
    assert not trainer.policy.training
    assert trainer.validate(1) == trainer.validate(1)


@pytest.mark.needs("spacy", "evaluate")
def test_validation_is_the_evaluation_of_the_policy(files: Path, tmp_path: Path) -> None:
    trainer = job(files, tmp_path).build(Processes())
    direct = evaluate_policy(
        PolicyGenerator(trainer.policy), trainer.validation, Processes(), Answering(max_new_tokens=24, progress=False)
    ).metrics
    assert trainer.validate(0) == {"score": direct["rouge_lsum"], **direct}


def test_long_answers_keep_their_end_of_sequence_and_are_counted(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = open_policy(files / "models/t5")
    prompts = [
        Prompt("a", "t", (3,), {"references": ["It is red."]}),
        Prompt("b", "t", (3,), {"references": ["It is red and it likes blue."]}),
    ]
    with caplog.at_level(logging.WARNING):
        short, long = demonstrations(prompts, policy, max_answer_tokens=6)
    assert "1 of 2 answers are longer than 6 tokens" in caplog.text
    assert policy.tokenizer.decode(short.answer_ids, skip_special_tokens=True) == "It is red."
    assert len(long.answer_ids) == 6 and long.answer_ids[-1] == policy.eos_ids[0]
    assert policy.tokenizer.decode(long.answer_ids, skip_special_tokens=True) == "It is red and it"


def test_no_examples_and_no_references_are_one_clear_error(files: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(DataError, match=r"empty\.json"):
        job(files, tmp_path / "run", data=str(tmp_path / "empty.json")).run()
    policy = open_policy(files / "models/t5")
    with pytest.raises(DataError, match="at least one training example"):
        demonstrations([], policy, 8)
    with pytest.raises(DataError, match="record b, field answer"):
        demonstrations([Prompt("b", "t", (3,))], policy, 8)
    assert not (tmp_path / "run").exists()


def test_long_prompts_are_cut_or_refused(files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trainer = job(files, tmp_path, max_prompt_tokens=10).build(Processes())
    assert "11 of 11 prompts are longer than 10 tokens" in caplog.text
    assert {len(item.prompt.input_ids) for item in trainer.data} == {10}
    with pytest.raises(DataError, match=r"train\.json, record x-0, field text: the prompt has \d+ tokens"):
        job(files, tmp_path, max_prompt_tokens=10, prompt_too_long="refuse").build(Processes())


def test_steps_follow_from_epochs(files: Path, tmp_path: Path) -> None:
    assert job(files, tmp_path, total_steps=None, epochs=10, batch_size=4).steps(1000) == 2500
    assert job(files, tmp_path, total_steps=None, epochs=3, batch_size=4).steps(11) == 9  # ⌈33 / 4⌉
    assert job(files, tmp_path, total_steps=7).steps(11) == 7
    config = job(files, tmp_path, total_steps=None, validate_every=None, checkpoint_every=None).loop_config(11)
    assert (config.validate_every, config.checkpoint_every) == (3, 3)  # once an epoch of ⌈11 / 4⌉ steps


def test_a_loss_that_is_no_number_ends_the_run(files: Path, tmp_path: Path) -> None:
    trainer = job(files, tmp_path).build(Processes())
    with torch.no_grad():
        next(trainer.policy.model.parameters()).fill_(float("nan"))
    with pytest.raises(ConsistencyError, match="step 1: loss is nan; the last checkpoint is sound"):
        trainer.train_step(1)


@pytest.mark.parametrize(
    "bad",
    [{"batch_size": 0}, {"epochs": 0}, {"dropout": 1.0}, {"max_answer_tokens": 1}, {"total_steps": 0}, {"patience": 0}],
)
def test_bad_numbers_are_refused(files: Path, tmp_path: Path, bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        job(files, tmp_path, **bad)


def test_seeds_decide_the_order(files: Path, tmp_path: Path) -> None:
    def losses(seed: int) -> list[float]:
        trainer = job(files, tmp_path, seed=seed, dropout=0.0).build(Processes())
        seed_everything(0)
        return [trainer.train_step(step)["loss"] for step in (1, 2)]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_it_is_what_the_loop_runs(files: Path, tmp_path: Path) -> None:
    """The settings object and the loop agree on what a run without validation exports: the last model."""
    sft = job(files, tmp_path, validation_data=None, total_steps=3)
    trainer = sft.build(Processes())
    result = run_loop(trainer, RunDirectory(tmp_path), sft.loop_config(11), Processes())
    assert (result.best_step, result.best_score) == (3, None)
    assert not (tmp_path / "eval.jsonl").exists()
