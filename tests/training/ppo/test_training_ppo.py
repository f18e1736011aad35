"""The trainer on tiny models: it learns, checks its start, stops, resumes, and does the same on several processes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, make_trainer, run_together, save_checkpoint
from rl_toy import policy, prompts
from seldom import seldom
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.core.records import Greedy, Prompt, Sample, SegmentScores
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rewards import ComponentConfig
from finegrained_rlhf.rollout.engine import rollout_in_batches
from finegrained_rlhf.runtime.loop.run import run_loop
from finegrained_rlhf.runtime.loop.types import LoopConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import micro_batches
from finegrained_rlhf.training.ppo.config import CompatConfig, KLConfig
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.parts import PPOData
from finegrained_rlhf.training.ppo.trainer import PPOTrainer


def weights(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    """Metrics of the steps, without times."""
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


@torch.no_grad()
def logprobs_of(owner: Policy, kind: str = "t5") -> Tensor:
    ids = torch.tensor([[5, 6, 7, 1]])
    return owner.logprobs(owner.encode(prompts(kind, 1)), torch.tensor([0]), ids, torch.ones_like(ids)).logprobs


def test_it_learns_a_rewarded_word(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, scorers={"words": WordScorer()}, lr=2e-2, samples=8, prompts_per_step=5, micro_batch_prompts=5
    )
    done = steps(trainer, 1, 8)
    assert done[0]["reward/words/raw"] < 0
    assert done[-1]["reward/words/raw"] > 2.0  # of at most 6
    assert done[-1]["kl"] > 1.0
    assert all(math.isfinite(x) for metrics in done for x in metrics.values())


def test_the_other_sign_teaches_the_opposite(tmp_path: Path) -> None:
    """A reward for short answers shortens them: credit goes to the tokens that earn it."""
    trainer = make_trainer(
        tmp_path, scorers={"length": LengthScorer()}, lr=2e-2, samples=8, prompts_per_step=5, micro_batch_prompts=5
    )
    done = steps(trainer, 1, 6)
    assert done[-1]["response_length"] < done[0]["response_length"] - 2


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("t5", {}),
        ("t5-v1.1", {"shared": True}),
        ("gpt2", {}),
        ("llama", {}),
        ("llama", {"shared": True}),
        ("t5", {"score_sampling": True, "temperature": 0.7}),
        ("t5", {"loss_average": "sequence", "value_target": "truncated"}),
        ("gpt2", {"shared": True, "kl": KLConfig(controller="adaptive", beta=0.1, target=1.0, horizon=100.0)}),
    ],
)
def test_a_fresh_run_starts_with_ratio_one_and_no_kl(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    trainer = make_trainer(tmp_path, kind, epochs=1, **options)
    before = weights(trainer)
    first, second = steps(trainer, 1, 2)
    assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["kl"] == pytest.approx(0.0, abs=1e-4)
    assert first["clip_fraction/policy"] == 0
    assert abs(second["kl"]) > 1e-5
    after = weights(trainer)
    assert all(float((after[name] - p).abs().max()) > 0 for name, p in before.items() if "wpe" not in name)
    assert all(math.isfinite(x) for metrics in (first, second) for x in metrics.values())


def test_metrics_are_what_was_rolled_out(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, prompts_per_step=5)
    rollouts: list[Any] = []
    decode = trainer.sampler.engine.decode
    trainer.sampler.engine.decode = lambda *a, **k: rollouts.append(decode(*a, **k)) or rollouts[-1]
    first, second = steps(trainer, 1, 2)
    assert (first["episodes"], second["episodes"], second["processes"]) == (20, 40, 1)
    rolled = rollouts[0]
    words = WordScorer().score([], rolled.texts).values
    raw = sum(sum(row) for row in words) / 20
    length = sum(-len(text) / 10 for text in rolled.texts) / 20
    assert first["reward/words/raw"] == pytest.approx(raw, abs=1e-5)
    assert first["reward/words/weighted"] == pytest.approx(raw, abs=1e-5)
    assert first["reward/length/raw"] == pytest.approx(length, abs=1e-5)
    assert first["reward/length/weighted"] == pytest.approx(0.5 * length, abs=1e-5)
    assert first["reward/total"] == pytest.approx(raw + 0.5 * length, abs=1e-5)
    assert first["segments/words"] == pytest.approx(sum(map(len, words)) / 20)
    lengths = rolled.lengths()
    assert first["response_length"] == pytest.approx(float(lengths.double().mean()))
    ends = [(row == 1).any().item() for row in rolled.response_ids]
    assert first["eos_rate"] == pytest.approx(sum(ends) / 20)
    # KL of the second step, before its update, against the policy that the run began with.
    start = policy("t5")
    index = rollouts[1].prompt_index
    with torch.no_grad():
        reference = start.logprobs(
            start.encode(rollouts[1].prompts), index, rollouts[1].response_ids, rollouts[1].response_mask
        )
    kl = (rollouts[1].logprobs - reference.logprobs).sum() / 20
    assert second["kl"] == pytest.approx(float(kl), abs=1e-4)
    assert second["beta"] == 0.05
    for phase in ("rollout", "rewards", "scoring", "update", "total"):
        assert trainer.train_step(3)[f"time/{phase}_s"] > 0


def test_a_prompt_drawn_twice_in_a_step_is_answered_anew(tmp_path: Path) -> None:
    """Seven prompts a step of five: two come twice, and two processes, which hold one of the two each, agree."""
    options: dict[str, Any] = {"prompts_per_step": 7, "max_new_tokens": 12}

    def responses(trainer: PPOTrainer) -> list[tuple[str, int, str]]:
        rolled: list[Any] = []
        decode = trainer.sampler.engine.decode
        trainer.sampler.engine.decode = lambda *a, **k: rolled.append(decode(*a, **k)) or rolled[-1]
        trainer.train_step(1)
        rows = zip(rolled[0].row_prompts(), rolled[0].sample_index.tolist(), rolled[0].texts, strict=True)
        return [(prompt.id, sample, text) for prompt, sample, text in rows]

    drawn = responses(make_trainer(tmp_path / "one", **options))
    first, second = {}, {}
    for name, sample, text in drawn:
        (second if (name, sample) in first else first)[name, sample] = text
    assert len(second) == 8 and len(first) == 20
    assert sum(second[key] != first[key] for key in second) >= 6
    once = responses(make_trainer(tmp_path / "once", prompts_per_step=5, max_new_tokens=12))
    assert {(name, sample): text for name, sample, text in once} == first  # the first draw is what it was
    owners = [policy("t5") for _ in range(2)]
    parts = run_together(
        2,
        lambda processes: responses(make_trainer(tmp_path / "two", owner=owners.pop(), processes=processes, **options)),
    )
    assert [row for part in parts for row in part] == drawn


def test_samples_show_every_segment(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.train_step(1)
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_1.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    for row in rows:
        assert set(row) == {"id", "prompt", "sample", "response", "segments", "tokens", "shares"}
        assert row["prompt"] == {p.id: p.text for p in prompts(count=5)}[row["id"]]
        words = [s for s in row["segments"] if s["component"] == "words"]
        assert [row["response"][s["start"] : s["end"]] for s in words] == row["response"].split()
        assert all(s["weighted"] == s["raw"] for s in words)
        (length,) = [s for s in row["segments"] if s["component"] == "length"]
        assert length["raw"] == -len(row["response"]) / 10 and length["weighted"] == 0.5 * length["raw"]


def test_samples_hold_every_number_of_every_token(tmp_path: Path) -> None:
    """Rewards before KL and whitening follow from the segments alone, and so do the trained ones."""
    trainer = make_trainer(tmp_path, whiten_rewards=False, whiten_advantages=False)
    trainer.train_step(1)
    trainer.samples = KeptSamples(every=1)
    trainer.train_step(2)
    rows = [json.loads(line) for line in (tmp_path / "samples" / "step_2.jsonl").read_text().splitlines()]
    assert [row["sample"] for row in rows] == [0, 1, 2, 3] * 3
    assert any(any(row["tokens"]["kl"]) for row in rows)
    for row in rows:
        tokens = row["tokens"]
        assert {len(values) for values in tokens.values()} == {len(tokens["ends"])}
        expected = [-0.05 * kl for kl in tokens["kl"]]
        for segment in row["segments"]:
            expected[segment["token"]] += segment["weighted"]
        assert tokens["reward"] == pytest.approx(expected, abs=1e-5)
        deltas = [
            r + after - v for r, v, after in zip(expected, tokens["value"], [*tokens["value"][1:], 0.0], strict=True)
        ]
        advantages = [sum(0.95 ** (j - i) * deltas[j] for j in range(i, len(deltas))) for i in range(len(deltas))]
        assert tokens["advantage"] == pytest.approx(advantages, abs=1e-4)


class Said(LengthScorer):
    """Gives what it is told, a little more to every further response."""

    raw = 0.0

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        values = [(self.raw + 0.5 * int(prompt.id[1:]),) for prompt in prompts]
        return SegmentScores([((0, len(r)),) for r in responses], values, whole_response=True)


def test_the_best_raw_reward_is_exported_under_running_normalisation(tmp_path: Path) -> None:
    """The moments move with training; the same responses must have the same score at step 0, 2 and 6."""
    scorer = Said()
    trainer = make_trainer(
        tmp_path, scorers={"said": scorer}, settings={"said": ComponentConfig("running")}, validation=5
    )
    raw = {0: 4.0, 2: 11.2, 4: 16.0, 6: 4.0}  # on average over five prompts 5, 12.2, 17 and 5
    scores, step_of = {}, trainer.train_step

    def train_step(step: int) -> dict[str, float]:
        scorer.raw = 3.0 * step
        return step_of(step)

    def validate(step: int) -> dict[str, float]:
        scorer.raw = raw[step]
        metrics = validated(step)
        assert metrics["reward/said/raw"] == pytest.approx(raw[step] + 1.0)
        scores[step] = metrics["score"]
        return metrics

    validated = trainer.validate
    trainer.train_step, trainer.validate = train_step, validate
    config = LoopConfig(total_steps=6, checkpoint_every=2, validate_every=2)
    result = run_loop(trainer, trainer.run, config, Processes())
    assert scores[0] == pytest.approx(scores[6], abs=1e-9)
    assert scores[0] < scores[2] < scores[4] and result.best_step == 4
    resumed = make_trainer(
        tmp_path, scorers={"said": scorer}, settings={"said": ComponentConfig("running")}, validation=5
    )
    resumed.load_state(tmp_path / "checkpoints" / "step_6")
    scorer.raw = 16.0
    assert resumed.validate(16)["score"] == pytest.approx(scores[4], abs=1e-9)


def test_validation_keeps_its_first_responses_and_changes_nothing(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, validation=5)
    trainer.samples = KeptSamples(of_validation=3)
    metrics = trainer.validate(0)
    rows = [json.loads(line) for line in (tmp_path / "samples" / "validation_step_0.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [p.id for p in prompts(count=3)]
    assert all(abs(kl) < 1e-5 for row in rows for kl in row["tokens"]["kl"])
    assert metrics["examples"] == 5
    fresh = make_trainer(tmp_path / "other")
    ours, other = trainer.train_step(1), fresh.train_step(1)
    assert {k: v for k, v in ours.items() if "time" not in k} == {k: v for k, v in other.items() if "time" not in k}


def test_validation_warns_of_hacking_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path, validation=2)
    first = trainer.validate(0)
    short = {**first, "response_length": first["response_length"] * 10, "reward/words/weighted": -9.0, "step": 0}
    (tmp_path / "eval.jsonl").write_text(json.dumps({**short, "reward/words/raw": -9.0, "segments/words": 0.0}) + "\n")
    for step in (1, 2):
        trainer.validate(step)
    warnings = [r.getMessage() for r in caplog.records if "length hacking? words rose from -9.000" in r.getMessage()]
    assert len(warnings) == 1


# Faults of the original code, on request ------------------------------------------------------------------------


def gradients_of(trainer: PPOTrainer) -> list[torch.Tensor]:
    """The gradients of the first epoch's step."""
    seen: list[list[torch.Tensor]] = []
    parameters = [p for p in trainer.models.policy.parameters() if p.requires_grad]

    def step(number: int) -> float:
        seen.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        return step_of(number)

    step_of = trainer.models.optimizer.step
    trainer.models.optimizer.step = step
    trainer.train_step(1)
    return seen[0]


def test_sums_of_micro_batches_grow_with_their_number(tmp_path: Path) -> None:
    def run(name: str, on: bool, prompts: int) -> list[torch.Tensor]:
        compat = CompatConfig(micro_batch_sums=on)
        trainer = make_trainer(tmp_path / name, compat=compat, micro_batch_prompts=prompts, epochs=1)
        return gradients_of(trainer)

    whole, original_whole = run("whole", False, 3), run("original_whole", True, 3)
    cut, original_cut = run("cut", False, 1), run("original_cut", True, 1)
    for one, same, three, other in zip(whole, original_whole, original_cut, cut, strict=True):
        assert torch.allclose(one, same, atol=1e-6)  # one micro-batch: no difference
        assert torch.allclose(one, other, atol=1e-5)  # the default does not depend on the cut
        assert torch.allclose(3 * one, three, atol=3e-5)


def test_dropout_in_the_update_is_on_in_the_update_alone(tmp_path: Path) -> None:
    owner = policy("t5")
    set_dropout(owner.model, 0.3)
    trainer = make_trainer(tmp_path, owner=owner, compat=CompatConfig(update_dropout=True), validation=2)
    modes: list[tuple[bool, bool]] = []
    backward = trainer._update._backward

    def watched(*args: Any, **names: Any) -> float:
        modes.append((trainer.models.policy.model.training, trainer.models.value.training))
        return backward(*args, **names)

    trainer._update._backward = watched
    metrics = trainer.train_step(1)
    assert set(modes) == {(True, True)}
    assert not trainer.models.policy.model.training and not trainer.models.value.training
    assert metrics["logprob_gap"] > 1e-2 and metrics["kl"] == pytest.approx(0.0, abs=1e-5)
    plain = make_trainer(tmp_path / "plain").train_step(1)
    assert plain["logprob_gap"] < 1e-5


class Meddler(WordScorer):
    """Moves a weight of the policy between the rollout and the update."""

    def __init__(self, owner: Policy, by: float) -> None:
        super().__init__()
        self.owner, self.by = owner, by

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        with torch.no_grad():
            self.owner.model.get_input_embeddings().weight.mul_(1 + self.by)
        return super().score(prompts, responses)


@pytest.mark.parametrize("by", [1e-2, float("nan")])
def test_a_policy_that_moves_before_the_first_update_is_noticed(tmp_path: Path, by: float) -> None:
    owner = policy("t5")
    trainer = make_trainer(tmp_path, owner=owner, scorers={"words": Meddler(owner, by)})
    with pytest.raises(ConsistencyError, match="before the first update the policy differs from its reference"):
        trainer.train_step(1)
    owner = policy("t5")
    late = make_trainer(tmp_path, owner=owner, scorers={"words": Meddler(owner, 1e-3)})
    late.fresh = False  # a resumed run has moved already
    late.train_step(1)


@pytest.mark.parametrize("by", [1e-2, float("nan")])
def test_a_policy_that_is_not_its_reference_at_the_start_is_noticed(tmp_path: Path, by: float) -> None:
    trainer = make_trainer(tmp_path)
    with torch.no_grad():
        trainer.models.reference_model.lm_head.weight[3:].mul_(1 + by)
    with pytest.raises(ConsistencyError, match="differs from its reference"):
        trainer.train_step(1)


class Dropped(LengthScorer):
    """Loses a response."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return super().score(prompts[1:], responses[1:])


def test_a_scorer_that_loses_a_response_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="component length scored 11 responses, 12 were given"):
        make_trainer(tmp_path, scorers={"length": Dropped()}).train_step(1)


def test_too_much_kl_stops_after_so_many_steps_in_all(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, kl=KLConfig(beta=0.0, limit=0.5, patience=2), lr=2e-2)
    kl = []
    for step in range(1, 8):
        kl.append(trainer.train_step(step)["kl"])
        assert (trainer.stop_reason is not None) == (sum(x > 0.5 for x in kl) >= 2)
    assert kl[0] < 0.5 and trainer.stop_reason is not None
    other = make_trainer(tmp_path, kl=KLConfig(limit=10.0, patience=3))
    for value, stopped in ((11.0, False), (3.0, False), (12.0, False), (10.0, False), (11.0, True)):
        other._after_step(value, 12)
        assert (other.stop_reason is not None) == stopped
    never = make_trainer(tmp_path, kl=KLConfig(limit=None))
    never._after_step(1e9, 12)
    assert never.stop_reason is None


def test_adaptive_beta_follows_the_kl_of_the_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, kl=KLConfig(controller="adaptive", beta=0.1, target=6.0, horizon=120.0))
    first, second = steps(trainer, 1, 2)
    assert first["beta"] == 0.1
    assert second["beta"] == pytest.approx(0.1 * (1 - 0.2 * 12 / 120))  # KL 0: as far down as one step goes


RESUMABLE: list[dict[str, Any]] = [
    {},
    {
        "shared": True,
        "kl": KLConfig(controller="adaptive", beta=0.1, target=1.0, horizon=50.0, limit=1e-9, patience=9),
        "settings": {"words": ComponentConfig("running")},
    },
    {"lora": True},
]


@pytest.mark.parametrize("options", [pytest.param(RESUMABLE[0], marks=pytest.mark.slow), *RESUMABLE[1:]])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, options: dict[str, Any]) -> None:
    lora = options.get("lora", False)
    save_policy(policy("t5"), tmp_path / "start")

    def fresh(name: str) -> PPOTrainer:
        owner = open_policy(tmp_path / "start", lora=LoraConfig(rank=2) if lora else None)
        if lora:  # a job seeds the drawing of new adapters; here both runs are given the same ones
            with torch.no_grad():
                for n, p in owner.model.named_parameters():
                    if ".lora_A" in n:
                        p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view_as(p))
        rest = {k: v for k, v in options.items() if k != "lora"}
        return make_trainer(tmp_path / name, owner=owner, lr=5e-3, **rest)

    whole = fresh("a")
    expected = steps(whole, 1, 4)
    stopped = fresh("b")
    steps(stopped, 1, 2)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    resumed = fresh("b")
    resumed.load_state(checkpoint)
    assert not resumed.fresh
    assert steps(resumed, 3, 4) == expected[2:]
    for name, weight in weights(whole).items():
        assert torch.equal(weights(resumed)[name], weight), name
    assert resumed.kl_exceeded == whole.kl_exceeded
    assert not list(tmp_path.rglob("*.bin")) and not list(tmp_path.rglob("*.pt"))


def test_the_reference_stays_the_policy_the_run_began_with(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, lr=1e-2)
    start = logprobs_of(policy("t5"))
    steps(trainer, 1, 2)
    reference = trainer.models.reference.own
    assert reference is not None
    assert torch.equal(logprobs_of(reference), start)
    assert not any(p.requires_grad for p in reference.parameters())
    assert float((logprobs_of(trainer.models.policy) - start).abs().max()) > 1e-2


def test_lora_moves_adapters_only_and_saves_a_plain_model(tmp_path: Path) -> None:
    save_policy(policy("t5"), tmp_path / "start")
    torch.manual_seed(0)  # new adapters are random
    owner = open_policy(tmp_path / "start", lora=LoraConfig(rank=4))
    trainer = make_trainer(tmp_path / "run", owner=owner, lr=2e-2)
    before = {n: p.detach().clone() for n, p in owner.model.named_parameters()}
    start = logprobs_of(policy("t5"))
    first, *_, last = steps(trainer, 1, 3)
    assert first["kl"] == pytest.approx(0.0, abs=1e-4) and abs(last["kl"]) > 1e-3
    moved = {n for n, p in owner.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n in before if ".lora_" in n}
    assert trainer.models.reference.own is None  # no second copy of the weights
    rollout = trainer.sampler.draw(prompts(count=2), [Greedy()], 9)
    (batch,) = micro_batches(rollout, 2)
    reference = trainer.models.reference_logprobs(batch)[batch.rows.argsort()]
    plain = policy("t5")
    with torch.no_grad():
        expected = plain.logprobs(
            plain.encode(prompts(count=2)), rollout.prompt_index, rollout.response_ids, rollout.response_mask
        )
    torch.testing.assert_close(reference, expected.logprobs, atol=1e-5, rtol=0)
    assert float((logprobs_of(owner) - start).abs().max()) > 1e-2
    trainer.model_to_save()(tmp_path / "saved")
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    ids = torch.tensor([prompts()[0].input_ids])
    with torch.no_grad():  # in fp64, so that only the rounding of the saved weights is left
        ours = owner.model.double()(input_ids=ids, labels=ids).logits
        scale = float(ours.abs().max())
        theirs = merged.double()(input_ids=ids, labels=ids).logits
        torch.testing.assert_close(theirs / scale, ours / scale, atol=1e-5, rtol=0)
    assert float((ours - plain.model(input_ids=ids, labels=ids).logits).abs().max()) > 1e-2


def test_validation_scores_greedy_answers_to_every_prompt_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, prompts_per_step=1, samples=2, validation=5)  # batches of two
    result = trainer.validate(0)
    (greedy,) = rollout_in_batches(trainer.sampler.engine, prompts(count=5), [Greedy()], max_new_tokens=6)
    words = [sum(row) for row in WordScorer().score([], greedy.texts).values]
    total = [word - 0.5 * len(text) / 10 for word, text in zip(words, greedy.texts, strict=True)]
    assert result["score"] == pytest.approx(sum(total) / 5, abs=1e-5)
    assert result["reward/words/raw"] == pytest.approx(sum(words) / 5, abs=1e-5)
    assert result["examples"] == 5
    assert make_trainer(tmp_path).validate(0) == {}
    with pytest.raises(ConfigError, match="no training prompts"):
        PPOData([], [])


@pytest.mark.parametrize(("count", "prompts_per_step"), seldom([(2, 3), (3, 2), (2, 1)], [(3, 2), (2, 1)]))
def test_processes_do_what_one_does(tmp_path: Path, count: int, prompts_per_step: int) -> None:
    """Shares of unequal size, and processes without any prompt; validations that are greedy, and that sample."""
    options: dict[str, Any] = {
        "prompts_per_step": prompts_per_step,
        "settings": {"words": ComponentConfig("running")},
        "validation": 5,
        "lr": 1e-3,
        "epochs": 2,
    }

    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, float], dict[str, Tensor]]:
        trainer = make_trainer(tmp_path / str(processes.count), processes=processes, owner=owners.pop(), **options)
        trainer.validation = Greedy() if count == 2 else Sample(2, top_p=0.9)
        return steps(trainer, 1, 2), trainer.validate(2), weights(trainer)

    owners = [policy("t5")]
    expected, validation, parameters = work(Processes())
    owners = [copy.deepcopy(policy("t5")) for _ in range(count)]
    for metrics, validated, moved in run_together(count, work):
        for one, other in zip(expected, metrics, strict=True):
            assert other.pop("processes") == count
            assert other == pytest.approx({k: v for k, v in one.items() if k != "processes"}, abs=2e-4)
        assert validated == pytest.approx(validation, abs=2e-4)
        for (
            name,
            parameter,
        ) in parameters.items():  # rounded in another order, divided by Adam; a step is 1e-3
            torch.testing.assert_close(moved[name], parameter, atol=2e-5, rtol=0)
    start = policy("t5").model.shared.weight
    assert float((parameters["policy.shared.weight"] - start).abs().max()) > 1e-3
    lines = [len((tmp_path / str(n) / "samples" / "step_1.jsonl").read_text().splitlines()) for n in (1, count)]
    assert lines[0] == lines[1] == 4 * prompts_per_step


def test_sampled_validations_draw_the_same_numbers_and_measure_the_references_perplexity(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "gpt2", validation=3, lr=1e-2)
    trainer.validation = Sample(4, top_p=0.9)
    first, again = (trainer.validate(step) for step in (0, 7))
    assert {**first, "score": 0} == {**again, "score": 0} and first["examples"] == 3
    drawn = trainer.sampler.draw(trainer.data.validation, [trainer.validation], 0)
    found = trainer.models.policy.logprobs(
        trainer.models.policy.encode(drawn.prompts), drawn.prompt_index, drawn.response_ids, drawn.response_mask
    ).logprobs
    mean = float(found.sum() / drawn.response_mask.sum())
    assert first["reference_perplexity"] == pytest.approx(math.exp(-mean), rel=1e-4)
    assert first["response_length"] == pytest.approx(float(drawn.lengths().float().mean()))
    trainer.train_step(1)
    assert trainer.validate(1)["reference_perplexity"] != first["reference_perplexity"]
