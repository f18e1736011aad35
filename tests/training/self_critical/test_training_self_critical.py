"""Self-critical training: what it computes, its invariances, resuming, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import run_together, save_checkpoint
from rl_toy import needs_continuous, policy, prompts
from seldom import seldom
from self_critical_toy import WordReward, examples, make_trainer
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.records import Greedy, Prompt, Sample
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.engine import rollout_in_batches
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.run import run_loop
from finegrained_rlhf.runtime.loop.types import LoopConfig
from finegrained_rlhf.runtime.optimizer import AdafactorConfig, OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig, SelfCriticalKL
from finegrained_rlhf.training.self_critical.rows import Imitation, useful
from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer
from finegrained_rlhf.training.sft import TrainSFT
from finegrained_rlhf.training.sft.trainer import Demonstration, SFTTrainer


def weights(trainer: SelfCriticalTrainer | SFTTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}


def steps(trainer: Any, first: int, last: int) -> list[dict[str, float]]:
    """Metrics without what depends on the clock."""
    found = (trainer.train_step(step) for step in range(first, last + 1))
    return [{k: v for k, v in metrics.items() if not k.startswith("time/")} for metrics in found]


def gradients(trainer: SelfCriticalTrainer, step: int = 1, told: dict[str, float] | None = None) -> dict[str, Tensor]:
    """The gradient of a training step instead of its update; `told` gets the metrics."""
    found: dict[str, Tensor] = {}

    def keep(step: int) -> float:
        for name, parameter in trainer.policy.model.named_parameters():
            found[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        trainer.optimizer.zero_grad()
        return 0.0

    trainer.optimizer_step = keep  # type: ignore[method-assign]
    metrics = trainer.train_step(step)
    if told is not None:
        told.update(metrics)
    return found


def test_it_learns_a_rewarded_word_without_any_reference(tmp_path: Path) -> None:
    data = [Imitation(prompt, None, rewarded=True) for prompt in prompts(count=5)]
    trainer = make_trainer(
        tmp_path, data=data, alpha=1.0, samples=8, batch_size=5, validation=5, optimizer=OptimizerConfig(lr=5e-3)
    )
    before = trainer.validate(0)["score"]
    metrics = steps(trainer, 1, 15)
    assert "loss/ce" not in metrics[0]
    assert trainer.validate(15)["score"] > before and metrics[-1]["score/samples"] > metrics[0]["score/samples"] + 0.3


class Odd(WordReward):
    """1 for an odd number of words."""

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [float(len(text.split()) % 2) for text in texts]


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_the_gradient_is_that_of_the_written_out_loss(tmp_path: Path, kind: str) -> None:
    """L = α mean_x L_RL + (1 − α) CE a token, from separate forward passes of every row, with no row left out."""
    trainer = make_trainer(tmp_path, kind, reward=Odd(), batch_size=5, alpha=0.6)
    ours = gradients(trainer)
    owner, data = policy(kind), examples(kind)
    rewarded = [e.prompt for e in data if e.rewarded]
    (rollout,) = rollout_in_batches(
        make_engine(owner), rewarded, [Greedy(), Sample(4, 1.0)], max_new_tokens=6, seed=0, step=1
    )
    assert rollout.response_mask.sum() > 0

    def log_probability(prompt: Prompt, ids: Sequence[int]) -> Tensor:
        row = torch.tensor([ids])
        memory = owner.encode([prompt])
        logits = owner.head(owner.hidden(memory, torch.zeros(1, dtype=torch.long), row)[0])
        return logits.log_softmax(dim=-1)[torch.arange(len(ids)), row[0]].sum()

    loss, nonzero = torch.zeros(()), 0
    for number, prompt in enumerate(rewarded):
        greedy, *samples = range(5 * number, 5 * number + 5)
        for row in samples:
            reward = len(rollout.texts[row].split()) % 2 - len(rollout.texts[greedy].split()) % 2
            nonzero += reward != 0
            length = int(rollout.response_mask[row].sum())
            ids = rollout.response_ids[row, :length].tolist()
            loss = loss - 0.6 * reward / 4 / len(rewarded) * log_probability(prompt, ids)
    tokens = sum(len(e.answer_ids) for e in data if e.answer_ids)
    for example in data:
        if example.answer_ids:
            loss = loss - 0.4 / tokens * log_probability(example.prompt, example.answer_ids)
    assert nonzero >= 2
    loss.backward()
    for name, parameter in owner.model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(ours[name], expected, atol=2e-5, rtol=1e-4, msg=name)


@needs_continuous
def test_samples_of_another_policy_are_weighed_and_references_are_not(tmp_path: Path) -> None:
    """The gradient with importance weights min(π/μ, C), written out token by token."""
    drawing = policy("llama")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in drawing.model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    engine, cap = make_engine(drawing, "continuous"), 1.1
    options: dict[str, Any] = {"reward": Odd(), "batch_size": 5, "alpha": 0.6, "engine": engine}
    trainer = make_trainer(tmp_path, "llama", importance_cap=cap, **options)
    metrics: list[dict[str, float]] = []
    train_step = trainer.train_step
    trainer.train_step = lambda step: metrics.append(train_step(step)) or {}  # type: ignore[method-assign]
    ours = gradients(trainer)
    owner, data = policy("llama"), examples("llama")
    rewarded = [e.prompt for e in data if e.rewarded]
    (rollout,) = rollout_in_batches(engine, rewarded, trainer.config.decodings(), max_new_tokens=6, seed=0, step=1)

    def log_probabilities(prompt: Prompt, ids: Sequence[int]) -> Tensor:
        whole = torch.tensor([[*prompt.input_ids, *ids]])
        logits = owner.model(input_ids=whole).logits[0, len(prompt.input_ids) - 1 : -1]
        return logits.log_softmax(dim=-1)[torch.arange(len(ids)), torch.tensor(ids)]

    loss, ratios = torch.zeros(()), []
    for number, prompt in enumerate(rewarded):
        greedy, *samples = range(5 * number, 5 * number + 5)
        for row in samples:
            reward = len(rollout.texts[row].split()) % 2 - len(rollout.texts[greedy].split()) % 2
            length = int(rollout.response_mask[row].sum())
            logprobs = log_probabilities(prompt, rollout.response_ids[row, :length].tolist())
            before = (logprobs.detach() - rollout.logprobs[row, :length]).exp()
            loss = loss - 0.6 * reward / 4 / len(rewarded) * (before.clamp(max=cap) * logprobs).sum()
            ratios += before.tolist() if reward else []
    tokens = sum(len(e.answer_ids) for e in data if e.answer_ids)
    for example in data:
        if example.answer_ids:
            loss = loss - 0.4 / tokens * log_probabilities(example.prompt, example.answer_ids).sum()
    loss.backward()
    for name, parameter in owner.model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=2e-5, rtol=1e-4, msg=name)
    (told,) = metrics
    assert 0 < sum(ratio > cap for ratio in ratios) < len(ratios)
    assert told["importance/max"] == pytest.approx(max(ratios), rel=1e-4)
    assert told["importance/mean"] == pytest.approx(sum(min(x, cap) for x in ratios) / len(ratios), abs=1e-5)
    assert told["importance/capped"] == pytest.approx(sum(x > cap for x in ratios) / len(ratios))


def test_wrong_importance_settings_are_one_error() -> None:
    for dropout in (None, 0.1):
        with pytest.raises(ConfigError, match="importance_cap compares .* give dropout=0"):
            SelfCriticalConfig(importance_cap=2.0, dropout=dropout)
    with pytest.raises(ConfigError, match="engine: expected one of auto, own, generate, continuous"):
        SelfCriticalConfig(engine="vllm")  # type: ignore[arg-type]


def moved(trainer: SelfCriticalTrainer) -> SelfCriticalTrainer:
    """The trainer with its policy away from what the run began with."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.policy.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return trainer


@pytest.mark.parametrize(("kind", "estimator"), [("t5", "k2"), ("llama", "k3")])
def test_the_gradient_of_the_kl_is_that_of_the_written_out_one(tmp_path: Path, kind: str, estimator: Any) -> None:
    """The gradient with β less that without is α β / m times ∇ Σ_i Σ_t k, meaned over the rewarded prompts."""
    data, found = examples(kind), {}
    metrics: dict[float, dict[str, float]] = {}
    for beta in (0.0, 0.3):
        kl = SelfCriticalKL(beta, estimator)
        trainer = moved(make_trainer(tmp_path / str(beta), kind, reward=Odd(), batch_size=5, alpha=0.6, kl=kl))
        found[beta] = gradients(trainer, told=metrics.setdefault(beta, {}))
    owner, start = trainer.policy, policy(kind)
    rewarded = [e.prompt for e in data if e.rewarded]
    decodings = trainer.config.decodings()
    (rollout,) = rollout_in_batches(make_engine(owner), rewarded, decodings, max_new_tokens=6, seed=0, step=1)
    owner.model.zero_grad()
    total, ratio = torch.zeros(()), 0.0
    for number, prompt in enumerate(rewarded):
        for row in range(5 * number + 1, 5 * number + 5):
            ids = rollout.response_ids[row, : int(rollout.response_mask[row].sum())]

            def tokens(of: Policy, prompt: Prompt = prompt, ids: Tensor = ids) -> Tensor:
                memory, row = of.encode([prompt]), ids.unsqueeze(0)
                logits = of.head(of.hidden(memory, torch.zeros(1, dtype=torch.long), row)[0])
                return logits.log_softmax(dim=-1)[torch.arange(len(ids)), ids]

            gap = tokens(owner) - tokens(start).detach()
            total = total + (gap**2 / 2 if estimator == "k2" else (-gap).exp() - 1 + gap).sum() / 4 / len(rewarded)
            ratio += float(gap.detach().sum()) / 4 / len(rewarded)
    (0.6 * 0.3 * total).backward()
    for name, parameter in owner.model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[0.3][name] - found[0.0][name], expected, atol=2e-5, rtol=1e-3, msg=name)
    told = metrics[0.3]
    assert told["loss/kl"] == pytest.approx(float(total.detach()), rel=1e-4) and total > 1e-3
    assert told["kl"] == pytest.approx(ratio, rel=1e-3)
    assert told["loss"] == pytest.approx(
        0.6 * (told["loss/rl"] + 0.3 * told["loss/kl"]) + 0.4 * told["loss/ce"], rel=1e-5
    )
    assert "kl" not in metrics[0.0]


def test_the_kl_begins_at_0_and_holds_the_policy(tmp_path: Path) -> None:
    data = [Imitation(prompt, None, rewarded=True) for prompt in prompts(count=5)]
    far = {}
    for beta in (1e-6, 1.0):
        trainer = make_trainer(
            tmp_path / str(beta), data=data, alpha=1.0, samples=8, batch_size=5, kl=SelfCriticalKL(beta),
            optimizer=OptimizerConfig(lr=5e-3),
        )  # fmt: skip
        metrics = steps(trainer, 1, 12)
        assert metrics[0]["kl"] == pytest.approx(0.0, abs=1e-5) and metrics[0]["loss/kl"] == pytest.approx(
            0.0, abs=1e-8
        )
        far[beta] = metrics[-1]["loss/kl"]
    assert 0 < far[1.0] < far[1e-6] / 3


def test_alpha_mixes_the_two_gradients(tmp_path: Path) -> None:
    rl, ce, mixed = (gradients(make_trainer(tmp_path, data=both(), alpha=alpha)) for alpha in (1.0, 0.0, 0.3))
    for name, gradient in mixed.items():
        torch.testing.assert_close(gradient, 0.3 * rl[name] + 0.7 * ce[name], atol=1e-5, rtol=1e-4)
    assert any(float(g.abs().max()) > 1e-3 for g in rl.values())


def both() -> list[Imitation]:
    """Examples that all have a reward and a reference."""
    return [Imitation(e.prompt, e.answer_ids or (5, 1), rewarded=True) for e in examples()]


@pytest.mark.parametrize("optimizer", [OptimizerConfig(lr=1e-2), AdafactorConfig(lr=1e-2)])
def test_alpha_0_is_supervised_training_bit_by_bit(tmp_path: Path, optimizer: Any) -> None:
    ours = make_trainer(tmp_path, data=both(), alpha=0.0, batch_size=3, optimizer=optimizer)
    data = [Demonstration(e.prompt, e.answer_ids) for e in both() if e.answer_ids]
    sizes = {"batch_size": 3, "micro_batch_size": 2, "total_steps": 100}
    job = TrainSFT(output_dir="", data="", policy=PolicyConfig(""), optimizer=optimizer, dropout=0.0, **sizes)
    theirs = SFTTrainer(job, policy(), data, [], Processes())
    for one, other in zip(steps(ours, 1, 4), steps(theirs, 1, 4), strict=True):
        assert one["loss"] == one["loss/ce"] == pytest.approx(other["loss"], rel=1e-6)
        assert one["gradient_norm"] == other["gradient_norm"]
    for name, weight in weights(theirs).items():
        assert torch.equal(weights(ours)[name], weight), name


class Constant(WordReward):
    """Every response is worth the same: no sample is better or worse than the greedy one."""

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [1.0] * len(texts)


def test_samples_that_earn_what_greedy_earns_give_no_gradient(tmp_path: Path) -> None:
    data = [Imitation(e.prompt, None, rewarded=True) for e in examples()]
    trainer = make_trainer(tmp_path, data=data, alpha=1.0, reward=Constant(), optimizer=AdafactorConfig(lr=1e-2))
    before = weights(trainer)
    (metrics,) = steps(trainer, 2, 2)
    assert metrics["gradient_norm"] == 0.0 and metrics["loss"] == 0.0 and metrics["rewarded_samples"] == 0.0
    assert all(torch.equal(before[name], p) for name, p in weights(trainer).items())


def test_greedy_baseline_and_samples_come_from_one_encoding_and_one_call_scores_them(tmp_path: Path) -> None:
    reward = WordReward()
    trainer = make_trainer(tmp_path, reward=reward, batch_size=5)
    encoded: list[list[str]] = []
    encode = trainer.engine.encode

    def counted(asked: Sequence[Prompt]) -> Any:
        encoded.append([p.id for p in asked])
        return encode(asked)

    trainer.engine.encode = counted  # type: ignore[method-assign]
    trainer.train_step(1)
    ((step_ids, ids, texts),) = reward.calls
    assert sorted(step_ids) == ["p0", "p1", "p3", "p4"] and [step_ids] == encoded
    assert ids == [name for name in step_ids for _ in range(5)]
    for number, name in enumerate(step_ids):
        (alone,) = [p for p in prompts(count=5) if p.id == name]
        for rows, decoding in ((slice(0, 1), Greedy()), (slice(1, 5), Sample(4, 1.0))):
            (rollout,) = rollout_in_batches(
                make_engine(policy()), [alone], [decoding], max_new_tokens=6, seed=0, step=1
            )
            assert list(rollout.texts) == texts[5 * number : 5 * number + 5][rows]


def test_micro_batches_do_not_change_the_gradient(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {"micro_batch_prompts": 5},
        {"micro_batch_prompts": 1},
        {"micro_batch_prompts": 5, "micro_batch_tokens": 30},
        {"micro_batch_prompts": 2, "prompts_per_batch": 1},
    ]
    kl = SelfCriticalKL(0.2)
    first, *others = (gradients(moved(make_trainer(tmp_path, batch_size=5, kl=kl, **config))) for config in settings)
    for other in others:
        for name, gradient in first.items():
            torch.testing.assert_close(other[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("count", "batch_size"), [(2, 5), (3, 2)])
def test_processes_do_what_one_does(tmp_path: Path, count: int, batch_size: int) -> None:
    """Shares of unequal size, and processes without any example."""

    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, float], dict[str, Tensor]]:
        trainer = make_trainer(
            tmp_path / str(processes.count),
            processes=processes,
            owner=owners.pop(),
            batch_size=batch_size,
            validation=5,
            samples_every=1,
            kl=SelfCriticalKL(0.2),
        )
        return steps(trainer, 1, 2), trainer.validate(2), weights(trainer)

    owners = [policy()]
    expected, validation, parameters = work(Processes())
    owners = [copy.deepcopy(policy()) for _ in range(count)]
    for metrics, validated, moved in run_together(count, work):
        for one, other in zip(expected, metrics, strict=True):
            assert other == pytest.approx(one, abs=2e-4)
        assert validated == pytest.approx(validation)
        for name, parameter in parameters.items():
            torch.testing.assert_close(moved[name], parameter, atol=1e-5, rtol=0)
    lines = [(tmp_path / str(n) / "samples" / "scored_step_1.jsonl").read_text() for n in (1, count)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("lora", "beta"), seldom([(False, 0.0), (True, 0.0), (False, 0.2), (True, 0.2)], [(False, 0.0), (True, 0.2)])
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, lora: bool, beta: float) -> None:
    save_policy(policy(), tmp_path / "start")

    def fresh(name: str) -> SelfCriticalTrainer:
        torch.manual_seed(0)  # new adapters are random
        owner: Policy = open_policy(tmp_path / "start", lora=LoraConfig(rank=2) if lora else None)
        optimizer = AdafactorConfig(lr=1e-2) if not lora else OptimizerConfig(lr=5e-3)
        return make_trainer(tmp_path / name, owner=owner, optimizer=optimizer, kl=SelfCriticalKL(beta))

    whole = fresh("a")
    expected = steps(whole, 1, 4)
    stopped = fresh("b")
    steps(stopped, 1, 2)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    resumed = fresh("b")
    resumed.load_state(checkpoint)
    assert steps(resumed, 3, 4) == expected[2:]
    assert ("kl" in expected[3]) == bool(beta) and (beta == 0 or expected[3]["loss/kl"] > 1e-6)
    for name, weight in weights(whole).items():
        assert torch.equal(weights(resumed)[name], weight), name


def test_the_loop_keeps_the_best_policy_and_times_every_phase(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, validation=3, samples_every=2)
    run = RunDirectory(tmp_path)
    config = LoopConfig(total_steps=3, checkpoint_every=2, validate_every=1)
    result = run_loop(trainer, run, config, Processes())
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for row in rows:
        parts = [row[f"time/{phase}_s"] for phase in ("rollout", "rewards", "update")]
        assert min(parts) > 0 and sum(parts) <= row["time/total_s"] <= row["time/step_s"]
    scores = [json.loads(line)["score"] for line in run.eval.read_text().splitlines()]
    assert result.best_score == max(scores) and (run.final("policy") / "config.json").is_file()
    (file,) = (tmp_path / "samples").iterdir()
    assert file.name == "scored_step_2.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    assert [s["reward"] for s in row["samples"]] == [s["score"] - row["greedy"]["score"] for s in row["samples"]]


def test_metrics_describe_the_responses(tmp_path: Path) -> None:
    reward = WordReward()
    (metrics,) = steps(make_trainer(tmp_path, reward=reward, batch_size=5), 1, 1)
    ((_, _, texts),) = reward.calls
    scores = torch.tensor([float("red" in text.split()) for text in texts]).view(-1, 5)
    assert metrics["score/greedy"] == pytest.approx(float(scores[:, 0].mean()))
    assert metrics["score/samples"] == pytest.approx(float(scores[:, 1:].mean()))
    assert metrics["reward"] == pytest.approx(float((scores[:, 1:] - scores[:, :1]).mean()))
    assert metrics["loss"] == pytest.approx(0.7 * metrics["loss/rl"] + 0.3 * metrics["loss/ce"])


def test_bf16_trains(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, processes=Processes(ProcessConfig(precision="bf16")))
    before = weights(trainer)
    (metrics,) = steps(trainer, 1, 1)
    assert metrics["gradient_norm"] > 0 and all(p.dtype == torch.float32 for p in weights(trainer).values())
    assert any(not torch.equal(before[name], p) for name, p in weights(trainer).items())


def test_what_an_alpha_can_learn_from() -> None:
    data = examples()
    assert [e.prompt.id for e in useful(data, 0.0)] == ["p0", "p1", "p2", "p4"]
    assert [e.prompt.id for e in useful(data, 1.0)] == ["p0", "p1", "p3", "p4"]
    assert useful(data, 0.5) == data
    assert useful([Imitation(data[0].prompt, None, rewarded=False)], 0.5) == []


class Forgetful(WordReward):
    """Loses a score, or gives one that is no number."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = scores

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        return [*self.scores, *[0.0] * (len(texts) - 2)]


def test_broken_rewards_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConsistencyError, match="scores for"):
        make_trainer(tmp_path, reward=Forgetful([1.0])).train_step(1)
    with pytest.raises(ConsistencyError, match="nan"):
        make_trainer(tmp_path, reward=Forgetful([1.0, float("nan")])).train_step(1)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"batch_size": 0}, "batch_size"),
        ({"samples": 0}, "sampling"),
        ({"max_new_tokens": 1}, "max_new_tokens"),
        ({"dropout": 1.0}, "dropout"),
        ({"temperature": 0.0}, "sampling"),
        ({"alpha": 0.0, "kl": SelfCriticalKL(0.1)}, "kl.beta: expected 0 where alpha is 0"),
        ({"dropout": None, "kl": SelfCriticalKL(0.1)}, "kl.beta compares .* give dropout=0"),
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SelfCriticalConfig(**bad)


@pytest.mark.parametrize(
    ("bad", "what"),
    [((-0.1, "k2"), "beta: expected at least 0"), ((0.1, "k1"), "kl.estimator"), ((0.1, "k4"), "estimator: expected")],
)
def test_bad_settings_of_the_kl_are_refused(bad: tuple[float, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SelfCriticalKL(*bad)


def test_data_of_no_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="alpha = 0.0"):
        make_trainer(tmp_path, alpha=0.0)  # some examples have no reference
    with pytest.raises(DataError, match="need examples"):
        make_trainer(tmp_path, data=[])
