"""The update against a loss written out row by row, and its invariances."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ppo_toy import make_trainer, value_model
from rl_toy import CAUSAL, policy, prompts
from seldom import seldom
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from finegrained_rlhf.core.records import Experience, Rollout, Sample
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.models.families import packed
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SharedTrunkValueModel, ValueModel
from finegrained_rlhf.rollout import GenerateEngine
from finegrained_rlhf.rollout.engine import rollout_in_batches
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import micro_batches
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.mini_batches import deal
from finegrained_rlhf.training.ppo.update import PPOUpdate, token_statistics

_READS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "repeat_interleave", "unique", "is_nonzero"}
"""Operations after which the host knows what the device computed, or how much of it there is."""
SETTINGS = {"clip": 0.2, "value_clip": 0.3, "value_coefficient": 0.7, "epochs": 1}


def models(kind: str, shared: bool) -> tuple[Policy, ValueModel]:
    owner = policy(kind)
    return owner, value_model(owner, kind, shared)


def experience(kind: str) -> Experience:
    """Responses of ragged length with random everything, so that every branch of both clips is taken."""
    rollout = rollout_in_batches(
        GenerateEngine(policy(kind)), prompts(kind, 5), [Sample(3, temperature=2.0)], max_new_tokens=7
    )[0]
    generator = torch.Generator().manual_seed(0)
    shape, mask = rollout.response_ids.shape, rollout.response_mask

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(shape, generator=generator) * mask

    old = Rollout(**{**vars(rollout), "logprobs": rollout.logprobs + noise(0.3)})
    return Experience(old, None, noise(1.0), noise(0.5), noise(1.0), noise(1.0), noise(1.0))


def update_gradient(
    kind: str,
    shared: bool,
    data: Experience,
    watched: AbstractContextManager[Any] | None = None,
    beta: float = 0.0,
    **config: object,
) -> tuple[dict[str, Tensor], dict[str, float], float]:
    """Gradients that reach the optimizer, metrics, and the largest |log ratio| that was reported."""
    owner, value = models(kind, shared)
    both = nn.ModuleDict({"policy": owner.model, "value": value})
    taken: list[dict[str, Tensor]] = []
    seen: list[float] = []

    def step(number: int) -> float:
        taken.append({n: p.grad.clone() for n, p in both.named_parameters() if p.grad is not None})
        both.zero_grad()
        return float(number)

    metrics = StepMetrics()
    settings = PPOConfig(**{**SETTINGS, **config})
    batches = micro_batches(data.rollout, settings.micro_batch_prompts, settings.micro_batch_tokens)
    optimizer = SimpleNamespace(sum_gradients=lambda: None, step=step)
    update = PPOUpdate(owner, value, optimizer, Processes(), settings)  # type: ignore[arg-type]
    with watched or nullcontext():
        update.run(7, data, batches, metrics, seen.append, beta)
    return taken[0], metrics.reduce(Processes()), seen[0]


def reference_gradient(
    kind: str, shared: bool, data: Experience, average: str, pair: tuple[Policy, ValueModel] | None = None
) -> tuple[dict[str, Tensor], float, float]:
    """Row by row through transformers' whole model, with the losses of the papers written out per token."""
    owner, value = pair or models(kind, shared)
    both = nn.ModuleDict({"policy": owner.model, "value": value})
    rollout, plain = data.rollout, owner.model
    rows, tokens = rollout.response_ids.shape[0], int(rollout.response_mask.sum())
    policy_total, value_total = torch.zeros(()), torch.zeros(())
    largest = 0.0
    for row, prompt in enumerate(rollout.row_prompts()):
        length = int(rollout.response_mask[row].sum())
        ids, answer = torch.tensor([prompt.input_ids]), rollout.response_ids[row : row + 1, :length]
        if kind in CAUSAL:
            whole, first = torch.cat([ids, answer], dim=1), len(prompt.input_ids) - 1
            output = plain(input_ids=whole, output_hidden_states=True)
            logits, trunk = output.logits[0, first:-1], output.hidden_states[-1][0, first:-1]
        else:
            output = plain(input_ids=ids, labels=answer, output_hidden_states=True)
            logits, trunk = output.logits[0], output.decoder_hidden_states[-1][0]
        if not shared and kind in CAUSAL:
            trunk = value.backbone(input_ids=whole).last_hidden_state[0, first:-1]
        elif not shared:
            encoded = value.backbone.encoder(input_ids=ids).last_hidden_state
            shifted = torch.cat([torch.tensor([[0]]), answer[:, :-1]], dim=1)
            trunk = value.backbone.decoder(input_ids=shifted, encoder_hidden_states=encoded).last_hidden_state[0]
        values = value.head(trunk)
        logprobs = logits.log_softmax(dim=-1)
        weight = 1 / tokens if average == "token" else 1 / (rows * length)
        for t in range(length):
            log_ratio = logprobs[t, answer[0, t]] - rollout.logprobs[row, t]
            largest = max(largest, abs(float(log_ratio.detach())))
            rho, a = log_ratio.exp(), data.advantages[row, t]
            policy_total = policy_total - weight * torch.min(rho * a, rho.clamp(0.8, 1.2) * a)
            v, old, target = values[t], data.values[row, t], data.returns[row, t]
            bounded = torch.max(torch.min(v, old + 0.3), old - 0.3)
            value_total = value_total + weight * 0.5 * torch.max((v - target) ** 2, (bounded - target) ** 2)
    (policy_total + 0.7 * value_total).backward()
    gradients = {n: p.grad for n, p in both.named_parameters() if p.grad is not None}
    return gradients, float(policy_total.detach()), float(value_total.detach())


class Reads(TorchDispatchMode):
    """Counts the operations for which a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        self.counts.update([name] if name in _READS else [])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "shared", "loss"), [("t5", False, "token"), ("gpt2", True, "sequence"), ("llama", False, "token")]
)
def test_micro_batches_wait_for_no_device(monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool, loss: str) -> None:
    """Responses share rows, as where FlexAttention serves; rows of their own have transformers' mask, which is read."""
    monkeypatch.setattr(packed, "pass_cost", lambda *_: packed.PassCost())
    data = experience(kind)
    counts = []
    for size in (5, 1):
        update_gradient(kind, shared, data, reads := Reads(), micro_batch_prompts=size, loss_average=loss)
        counts.append(dict(reads.counts))
    whole, parts = counts
    assert parts == whole and sum(whole.values()) > 0


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    assert set(one) == set(other)
    for name, gradient in one.items():
        scale = max(1.0, float(other[name].abs().max()))
        torch.testing.assert_close(gradient, other[name], atol=tolerance * scale, rtol=0, msg=lambda m: f"{name}: {m}")  # noqa: B023


@pytest.mark.parametrize("average", ["token", "sequence"])
@pytest.mark.parametrize(
    ("kind", "shared"),
    seldom(
        [("t5", False), ("t5", True), ("gpt2", False), ("t5-v1.1", True), ("llama", True), ("llama", False)],
        often=[("t5", False), ("llama", True)],
    ),
)
def test_the_gradient_is_that_of_the_written_out_loss(kind: str, shared: bool, average: str) -> None:
    data = experience(kind)
    gradients, metrics, _ = update_gradient(kind, shared, data, loss_average=average, micro_batch_prompts=2)
    expected, policy_loss, value_loss = reference_gradient(kind, shared, data, average)
    assert max(float(g.abs().max()) for g in expected.values()) > 0.01
    assert_same(gradients, expected, 1e-5)
    assert metrics["loss/policy"] == pytest.approx(policy_loss, abs=1e-5)
    assert metrics["loss/value"] == pytest.approx(value_loss, abs=1e-5)
    assert 0.1 < metrics["clip_fraction/policy"] < 0.9 and 0.1 < metrics["clip_fraction/value"] < 0.9
    assert metrics["gradient_norm"] == 7.0  # the step's number went through


def without_rows(data: Experience, rows: list[int]) -> Experience:
    """The experience without some responses; no prompt loses all of its."""
    left = [row for row in range(len(data.rollout.texts)) if row not in rows]
    tensors = {name: value for name, value in vars(data.rollout).items() if isinstance(value, Tensor)}
    drawn = {name: value[left] for name, value in tensors.items() if name not in ("prompt_ids", "prompt_mask")}
    texts = {name: [getattr(data.rollout, name)[row] for row in left] for name in ("texts", "token_ends")}
    fields = {name: value[left] for name, value in vars(data).items() if isinstance(value, Tensor)}
    return replace(data, rollout=Rollout(**{**vars(data.rollout), **drawn, **texts}), **fields)


@pytest.mark.parametrize("average", ["token", "sequence", "constant"])
def test_responses_that_are_not_learnt_from_are_in_no_loss(average: str) -> None:
    data, left_out = experience("t5"), [1, 5, 12]
    learnt = torch.tensor([row not in left_out for row in range(len(data.rollout.texts))])
    some, metrics, _ = update_gradient("t5", False, replace(data, learnt=learnt), loss_average=average)
    few, expected, _ = update_gradient("t5", False, without_rows(data, left_out), loss_average=average)
    assert_same(some, few, 1e-6)
    for name in ("loss/policy", "loss/value", "clip_fraction/policy", "clip_fraction/value", "ratio"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-5), name


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_a_kl_penalty_in_the_loss_is_over_all_responses(average: str) -> None:
    data = experience("t5")
    data = replace(data, advantages=torch.zeros_like(data.advantages))  # what is left of the loss is the penalty
    learnt = torch.arange(len(data.rollout.texts)) % 3 > 0
    keys = {"loss_average": average, "value_coefficient": 0.0, "kl": KLConfig(place="loss")}
    some, of_some, _ = update_gradient("t5", False, replace(data, learnt=learnt), beta=0.3, **keys)
    every, of_every, _ = update_gradient("t5", False, data, beta=0.3, **keys)
    assert max(float(gradient.abs().max()) for gradient in every.values()) > 1e-3
    assert_same(some, every, 1e-6)
    assert of_some["loss/kl"] == pytest.approx(of_every["loss/kl"], abs=1e-6)


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_micro_batches_do_not_change_the_gradient(average: str) -> None:
    data = experience("t5")
    whole = update_gradient("t5", False, data, loss_average=average, micro_batch_prompts=5)
    for size in (1, 2, 3):
        part = update_gradient("t5", False, data, loss_average=average, micro_batch_prompts=size)
        assert_same(part[0], whole[0], 1e-6)
        assert part[1] == pytest.approx(whole[1], abs=1e-5)
        assert part[2] == pytest.approx(whole[2], abs=1e-5)


@pytest.mark.parametrize(("kind", "average"), [("t5", "token"), ("gpt2", "sequence")])
def test_a_step_of_four_mini_batches_is_eight_written_out(kind: str, average: str) -> None:
    """Two epochs over five prompts; gradients by plain forward passes, AdamW by a loop over numbers."""
    data, settings = experience(kind), OptimizerConfig(lr=1e-2, weight_decay=0.1, eps=1e-3, schedule="constant")
    owner, value = models(kind, False)
    both = nn.ModuleDict({"policy": owner.model, "value": value})
    config = PPOConfig(**{**SETTINGS, "epochs": 2, "mini_batches": 4, "loss_average": average})
    optimizer = settings.build(both.named_parameters(), 10)
    metrics = StepMetrics()
    update = PPOUpdate(owner, value, optimizer, Processes(), config, seed=3)
    update.run(2, data, micro_batches(data.rollout, 2), metrics)

    plain_owner, plain_value = models(kind, False)
    plain = nn.ModuleDict({"policy": plain_owner.model, "value": plain_value})
    first, second = ({name: torch.zeros_like(p) for name, p in plain.named_parameters()} for _ in range(2))
    norms, number = [], 0
    for epoch in range(2):
        for places in deal(5, 4, 3, 2, epoch):
            others = [row for row, owner_of in enumerate(data.rollout.prompt_index.tolist()) if owner_of not in places]
            plain.zero_grad()
            part = without_rows(data, others)
            gradients, *_ = reference_gradient(kind, False, part, average, (plain_owner, plain_value))
            number += 1
            norms.append(math.sqrt(sum(float((g**2).sum()) for g in gradients.values())))
            with torch.no_grad():
                for name, p in plain.named_parameters():
                    g = gradients.get(name, torch.zeros_like(p))
                    first[name] = 0.9 * first[name] + 0.1 * g
                    second[name] = 0.999 * second[name] + 0.001 * g * g
                    decay = 0.1 * p if p.dim() > 1 else 0.0
                    root = (second[name] / (1 - 0.999**number)).sqrt() + 1e-3
                    p.sub_(1e-2 * (decay + first[name] / (1 - 0.9**number) / root))
    assert number == 8
    for (name, ours), theirs in zip(both.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0, msg=lambda m: f"{name}: {m}")  # noqa: B023
    assert metrics.reduce(Processes())["gradient_norm"] == pytest.approx(sum(norms) / 8, rel=1e-4)


@pytest.mark.parametrize(("prompts_", "parts"), [(4, 4), (5, 4), (16, 3), (7, 1)])
def test_mini_batches_are_dealt_alike_to_neighbours(prompts_: int, parts: int) -> None:
    dealt = [deal(prompts_, parts, 0, 1, epoch) for epoch in range(6)]
    for members in dealt:
        assert sorted(place for part in members for place in part) == list(range(prompts_))
        for first in range(0, prompts_, parts):  # of so many neighbours no two are together
            near = range(first, first + parts)
            assert all(len(set(part) & set(near)) <= 1 for part in members)
    assert parts == 1 or any(members != dealt[0] for members in dealt)
    assert deal(prompts_, parts, 0, 1, 0) == dealt[0]
    with pytest.raises(ValueError, match="2 prompts make no 3 mini-batches"):
        deal(2, 3, 0, 1, 0)


def test_averages_by_hand() -> None:
    """Responses of 1 and 3 tokens, ratio 1, advantages 4 and (1, 1, 1): −7/4 a token, −(4 + 1)/2 a response."""
    asked = prompts("t5", 2)
    owner = policy("t5")
    ids = torch.tensor([[1, 0, 0], [5, 6, 1]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    index = torch.arange(2)
    memory = owner.encode(asked)
    with torch.no_grad():
        logprobs = owner.logprobs(memory, index, ids, mask).logprobs
    none = torch.zeros(2, dtype=torch.long)
    rollout = Rollout(
        asked,
        memory.prompt_ids,
        memory.prompt_mask,
        index,
        none,
        none,
        (Sample(1),),
        ids,
        mask,
        logprobs,
        ["", ""],
        [(), ()],
    )
    advantages = torch.tensor([[4.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    zero = torch.zeros(2, 3)
    data = Experience(rollout, None, zero, zero, zero, advantages, zero)
    for average, expected in (("token", -7 / 4), ("sequence", -5 / 2)):
        for size in (1, 2):
            _, metrics, largest = update_gradient("t5", False, data, loss_average=average, micro_batch_prompts=size)
            assert metrics["loss/policy"] == pytest.approx(expected, abs=1e-5)
            assert metrics["ratio"] == pytest.approx(1.0, abs=1e-6)
            assert largest < 1e-5


def test_the_reported_log_ratio_is_the_largest_and_nan_does_not_hide() -> None:
    data = experience("t5")
    _, _, largest = update_gradient("t5", False, data, micro_batch_prompts=2)
    owner = policy("t5")
    rollout = data.rollout
    with torch.no_grad():
        now = owner.logprobs(
            owner.encode(rollout.prompts), rollout.prompt_index, rollout.response_ids, rollout.response_mask
        ).logprobs
    assert largest == pytest.approx(float((now - rollout.logprobs).abs().max()), abs=1e-5)
    for junk in (math.nan, math.inf, -math.inf):
        broken = rollout.logprobs.clone()
        broken[0, 0] = junk
        spoilt = Experience(**{**vars(data), "rollout": Rollout(**{**vars(rollout), "logprobs": broken})})
        assert update_gradient("t5", False, spoilt, micro_batch_prompts=2)[2] == math.inf


def test_padding_of_the_experience_does_not_matter() -> None:
    data = experience("t5")
    padding = ~data.rollout.response_mask.bool()
    assert padding.any()

    def spoil(tensor: Tensor) -> Tensor:
        return torch.where(padding, torch.full_like(tensor, 7), tensor)

    rollout = Rollout(
        **{
            **vars(data.rollout),
            "logprobs": spoil(data.rollout.logprobs),
            "response_ids": spoil(data.rollout.response_ids),
        }
    )
    dirty = Experience(
        rollout,
        None,
        data.reference_logprobs,
        spoil(data.values),
        data.rewards,
        spoil(data.advantages),
        spoil(data.returns),
    )
    assert_same(update_gradient("t5", False, dirty)[0], update_gradient("t5", False, data)[0], 1e-6)


def test_every_epoch_is_one_optimizer_step_over_everything(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=3, micro_batch_prompts=1)
    steps: list[int] = []
    step = trainer.models.optimizer.step
    trainer.models.optimizer.step = lambda number: steps.append(number) or step(number)
    trainer.train_step(1)
    trainer.train_step(2)
    assert steps == [1, 1, 1, 2, 2, 2]


def test_statistics_of_a_group_are_cut_to_its_longest_response() -> None:
    data = experience("t5")
    owner, value = models("t5", False)
    for batch in micro_batches(data.rollout, 2):
        with torch.no_grad():
            now = token_statistics(owner, value, batch)
        mask = data.rollout.response_mask[batch.rows]
        assert now.logprobs.shape == now.values.shape == now.entropy.shape
        assert now.logprobs.shape == (len(batch.rows), int(mask.sum(dim=1).max()))
        assert not now.values[~mask[:, : now.values.shape[1]].bool()].any()


def test_the_shared_head_is_a_shared_head() -> None:
    assert isinstance(models("t5", True)[1], SharedTrunkValueModel)
