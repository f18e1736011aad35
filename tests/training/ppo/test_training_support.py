"""Under top-k and top-p: what each token was drawn from travels with it, and every optimizer step is held to that."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_toy import save_chat_model, talk
from ppo_toy import assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import needs_continuous, policy, prompts
from seldom import seldom
from torch import Tensor, nn

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import Prompt, Rollout, Sample
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.distribution import support_of, warp_logits, within
from finegrained_rlhf.models.logprobs import Anchor, token_logprobs
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rl.importance import importance_weights
from finegrained_rlhf.rl.kl import kl_estimates
from finegrained_rlhf.rl.losses import clipped_policy_loss
from finegrained_rlhf.rollout import ScriptedReplies, make_engine
from finegrained_rlhf.rollout.engine import RolloutSampler
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.turns import in_turns
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.training.ppo import GroupAdvantages, scoring, update
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

SAMPLINGS = [Sample(4, 1.3, top_k=3), Sample(4, 1.5, top_p=0.6)]
LONGEST, WORDS, PATHS = 3, 5, Sample(1, 0.8, top_k=2)


def logits_of(owner: Policy, prompt: Prompt, ids: Tensor) -> Tensor:
    """[t, V]: what transformers' own forward says of a response's tokens [t]."""
    asked = torch.tensor([prompt.input_ids])
    if owner.model.config.is_encoder_decoder:
        return owner.model(input_ids=asked, labels=ids[None]).logits[0]
    return owner.model(input_ids=torch.cat([asked, ids[None]], dim=1)).logits[0, asked.shape[1] - 1 : -1]


@torch.no_grad()
def left_by(owner: Policy, rollout: Rollout, decoding: Sample) -> list[Tensor]:
    """Bool [t, V] of each response: what `decoding` leaves of the policy's distribution."""
    rows = zip(rollout.row_prompts(), rollout.response_ids, rollout.lengths().tolist(), strict=True)
    return [warp_logits(logits_of(owner, prompt, ids[:n]), decoding) > -torch.inf for prompt, ids, n in rows]


def allowed(rollout: Rollout, decoding: Sample, words: int) -> list[Tensor]:
    assert rollout.support is not None
    whole = within(torch.zeros(*rollout.response_ids.shape, words), decoding, rollout.support) > -torch.inf
    return [row[:n] for row, n in zip(whole, rollout.lengths().tolist(), strict=True)]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("decoding", SAMPLINGS)
@pytest.mark.parametrize("engine", ["fast", "recorded", "generate", pytest.param("continuous", marks=needs_continuous)])
def test_every_engine_says_what_a_token_was_drawn_from(
    engine: Any, decoding: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches of two of five prompts; a recorded step is used twice, for other prompts."""
    kind = "llama" if engine == "continuous" else "t5"
    owner = policy(kind)
    owner.scored, words = decoding, owner.model.config.vocab_size
    draws = make_engine(owner, "auto" if engine in ("fast", "recorded") else engine)
    if engine == "recorded":
        assert isinstance(draws, FastEngine)
        monkeypatch.setattr("finegrained_rlhf.rollout.fast.GraphedStep", lambda step, *_: step)
        draws._records = lambda: True  # type: ignore[method-assign]
    rollout = RolloutSampler(draws, owner.pad_id, Processes(), 3, 7, 2).draw(prompts(kind, 5), [decoding], 1)
    kept = allowed(rollout, decoding, words)
    assert_same(kept, left_by(owner, rollout, decoding))
    assert len({n for row in kept for n in row.sum(dim=1).tolist()}) > 1 or decoding.top_k
    owner.scored = None
    assert draws.decode(draws.encode(prompts(kind, 2)), [decoding], max_new_tokens=4).support is None


def test_conversations_keep_it_turn_by_turn(tmp_path: Path) -> None:
    path = save_chat_model(tmp_path / "chat")
    write_jsonl(tmp_path / "data.jsonl", [{"id": "a", "messages": talk("who ran"), "replies": ["red blue", "the dog"]}])
    owner = PolicyConfig(str(path)).load("cpu")
    with torch.no_grad():  # so that turns end
        weight = owner.model.get_input_embeddings().weight
        end = owner.tokenizer.convert_tokens_to_ids("<|im_end|>")
        weight[end] = weight.mean(dim=0) + 0.6 * owner.model.transformer.ln_f.weight.sign() * weight.std() * 4
    asked = prompts_for(owner, str(tmp_path / "data.jsonl"), 64, "refuse", PromptConfig())
    owner.scored = decoding = Sample(6, 1.2, top_k=9)
    engine = in_turns(make_engine(owner), owner, ScriptedReplies(), asked)
    rollout = engine.decode(engine.encode(asked), [decoding], max_new_tokens=60, seed=5)
    assert max(len(talk.tokens) for talk in rollout.turns) > 1
    written = [row[:n].bool() for row, n in zip(rollout.written, rollout.lengths().tolist(), strict=True)]
    rows = zip(
        allowed(rollout, decoding, owner.model.config.vocab_size),
        left_by(owner, rollout, decoding),
        written,
        strict=True,
    )
    assert all(torch.equal(kept[own], left[own]) for kept, left, own in rows)


# The gradient, by enumeration ------------------------------------------------------------------------------------


class Table:
    """A policy by place and by the token before, through the function that the update calls."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.head = nn.Linear(LONGEST * (WORDS + 1), WORDS, bias=False)
        nn.init.normal_(self.head.weight, std=1.5)

    def states(self, ids: Tensor) -> Tensor:
        before = torch.cat([torch.full_like(ids[:, :1], WORDS), ids[:, :-1]], dim=1)
        return nn.functional.one_hot(before + (WORDS + 1) * torch.arange(LONGEST), LONGEST * (WORDS + 1)).float()


ALL = torch.tensor(list(itertools.product(range(WORDS), repeat=LONGEST)))
WORTH = torch.randn(len(ALL), generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def drawn_from(drew: Table) -> tuple[Tensor, Tensor]:
    """bool [n, T, V], what the table that draws leaves at each state; bool [n], what it can draw."""
    left = warp_logits(drew.head(drew.states(ALL)).detach(), PATHS) > -torch.inf
    return left, left.gather(2, ALL[:, :, None]).all(dim=1)[:, 0]


def true_gradient(table: Table, drew: Table) -> Tensor:
    """Of Σ_y Π_t π(y_t | y_<t, S_t) R(y), in fp64, by plain sums over what `drew` can draw."""
    left, possible = drawn_from(drew)
    weight = table.head.weight.detach().double().requires_grad_()
    exponentials = (table.states(ALL).double() @ weight.T / PATHS.temperature).exp() * left
    chosen = exponentials.gather(2, ALL[:, :, None])[:, :, 0] / exponentials.sum(dim=2)
    (gradient,) = torch.autograd.grad((chosen.prod(dim=1) * WORTH * possible).sum(), weight)
    return gradient


def own_gradient(table: Table, drew: Table, kept: bool) -> Tensor:
    """On average over what `drew` draws: token_logprobs, importance weights and the policy loss as the update has them.

    The first optimizer step after that the policy has moved, and no clip; the ratio of whole responses corrects it.
    """
    _, possible = drawn_from(drew)
    ids = ALL[possible]
    mask = torch.ones_like(ids)
    warped = warp_logits(drew.head(drew.states(ids)).detach(), PATHS, keep=ids)
    support = support_of(warped, ids, PATHS)
    with torch.no_grad():
        sampler = token_logprobs(drew.states(ids), ids, mask, drew.head, scored=PATHS, support=support).logprobs
    now = token_logprobs(
        table.states(ids), ids, mask, table.head, scored=PATHS, support=support if kept else None, chunk_tokens=50
    ).logprobs
    ratio = importance_weights(now.detach(), sampler, mask, cap=1e9, mode="sequence_truncate").weights
    chances = sampler.sum(dim=1).exp()[:, None]
    advantages = WORTH[possible].float()[:, None].expand_as(now)
    loss = clipped_policy_loss(now, now.detach(), advantages, mask, clip=10.0, weights=ratio * chances).loss
    (gradient,) = torch.autograd.grad(loss, table.head.weight)
    return -gradient.double()


@pytest.mark.parametrize("moved", [False, True])
def test_the_gradient_is_that_of_the_distribution_that_drew(moved: bool) -> None:
    """Exact to fp32. By the support of the policy's own weights it is so only before it moves."""
    drew, table = Table(0), Table(1 if moved else 0)
    true = true_gradient(table, drew)
    error = [float((own_gradient(table, drew, kept) - true).norm() / true.norm()) for kept in (True, False)]
    assert float(true.norm()) > 0.1 and error[0] < 1e-6
    assert error[1] > 0.1 if moved else error[1] < 1e-6


def test_both_estimates_have_the_divergence_as_their_mean() -> None:
    """The reference is held to the same tokens: E[k1] = E[k3] = the KL over what can be drawn, as anchors say."""
    drew, table, reference = Table(0), Table(1), Table(2)
    left, _ = drawn_from(drew)
    first = torch.arange(WORDS)[left[0, 0]]
    ids = torch.stack([first, first * 0, first * 0], dim=1)
    mask = torch.tensor([[1, 0, 0]]).expand_as(ids)
    support = support_of(warp_logits(drew.head(drew.states(ids)).detach(), PATHS, keep=ids), ids, PATHS)
    with torch.no_grad():
        anchor = Anchor(reference.states(ids), reference.head)
        now = token_logprobs(table.states(ids), ids, mask, table.head, scored=PATHS, support=support, anchor=anchor)
        other = token_logprobs(reference.states(ids), ids, mask, reference.head, scored=PATHS, support=support)
    chances = now.logprobs[:, 0].exp()
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-6) and now.kl is not None
    for estimator in ("k1", "k3"):
        each = kl_estimates(now.logprobs, other.logprobs, mask, estimator)[:, 0]  # type: ignore[arg-type]
        assert float((chances * each).sum()) == pytest.approx(float(now.kl[0, 0]), abs=1e-6)
    assert float(now.kl[0, 0]) > 0.01


# Whole steps of training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "drawn"),
    [
        ("t5", {"top_k": 3}),
        ("llama", {"top_p": 0.6, "ahead": 1, "importance_cap": 10.0}),
    ],
)
def test_every_optimizer_step_scores_what_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, drawn: dict[str, Any]
) -> None:
    """Two epochs of two mini-batches a step, against transformers' forward over the support of the policy that drew."""
    trainer = make_trainer(
        tmp_path, kind, drawn=drawn, lr=3e-2, epochs=2, mini_batches=2, score_sampling=True, prompts_per_step=4
    )
    owner, decoding = trainer.models.policy, trainer.rollout_config.decoding()
    real, owners, gaps, moved, seen = update.token_statistics, [], [], [], [0]

    def watched(now: Policy, value: Any, batch: Any, **rest: Any) -> Any:
        statistics = real(now, value, batch, **rest)
        drew = owners[max(len(owners) - 1 - drawn.get("ahead", 0), 0)]
        for row, (place, ids) in enumerate(zip(batch.index.tolist(), batch.ids, strict=True)):
            n = int(batch.mask[row].sum())
            with torch.no_grad():
                logits = logits_of(now, batch.prompts[place], ids[:n]) / decoding.temperature
                left = warp_logits(logits_of(drew, batch.prompts[place], ids[:n]), decoding) > -torch.inf
            expected = logits.masked_fill(~left, -torch.inf).log_softmax(dim=1).gather(1, ids[:n, None])[:, 0]
            gaps.append(float((statistics.logprobs[row, :n].detach() - expected).abs().max()))
            kept = warp_logits(logits, replace(decoding, temperature=1.0)) > -torch.inf
            moved.append(bool((kept != left).any()))
        seen[0] += 1
        return statistics

    monkeypatch.setattr(update, "token_statistics", watched)
    monkeypatch.setattr(scoring, "token_statistics", watched)
    for step in range(1, 3 + drawn.get("ahead", 0)):
        owners.append(copy.deepcopy(owner))
        metrics = trainer.train_step(step)
        assert math.isfinite(metrics["loss/policy"])
    assert seen[0] >= 10 and max(gaps) < 2e-5
    assert any(moved)  # another support by the weights of the step itself


def learnt(trainer: PPOTrainer, first: int, last: int) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    weights = {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}
    return [{k: v for k, v in one.items() if not k.startswith("time/")} for one in done], weights


@pytest.mark.parametrize("cut", seldom([{"top_k": 3}, {"top_p": 0.7}], often=[{"top_k": 3}]))
def test_processes_and_resumed_runs_keep_it(tmp_path: Path, cut: dict[str, Any]) -> None:
    """Drawn ahead, in batches of one prompt, and again where nothing is learnt; three processes, one has no prompt."""
    drawn = {**cut, "ahead": 1, "importance_cap": 5.0, "resample": 1, "prompts_per_batch": 1, "truncated": "masked"}

    def fresh(name: str, owner: Policy, processes: Processes | None = None) -> PPOTrainer:
        return make_trainer(
            tmp_path / name, owner=owner, processes=processes, drawn=drawn, algorithm=GroupAdvantages(), epochs=2,
            lr=5e-3, prompts_per_step=2, score_sampling=True,
        )  # fmt: skip

    whole = fresh("a", policy("t5"))
    expected = learnt(whole, 1, 3)
    stopped, resumed = fresh("b", policy("t5")), fresh("c", policy("t5"))
    learnt(stopped, 1, 1)
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    again = learnt(resumed, 2, 3)
    assert again[0] == expected[0][1:]
    assert all(torch.equal(again[1][name], weight) for name, weight in expected[1].items())
    owners = [policy("t5") for _ in range(3)]
    assert_alike(expected, run_together(3, lambda p: learnt(fresh(f"d{p.rank}", owners.pop(), p), 1, 3)))


def test_an_engine_that_says_nothing_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    owner = policy("t5")
    engine = make_engine(owner)
    trainer = make_trainer(tmp_path, owner=owner, engine=engine, drawn={"top_k": 3}, score_sampling=True)
    decode = engine.decode
    engine.decode = lambda *a, **k: Rollout(**{**vars(decode(*a, **k)), "support": None})  # type: ignore[method-assign]
    for step in (1, 2):
        trainer.train_step(step)
    assert caplog.text.count("does not say which tokens top-k or top-p left at each step") == 1
