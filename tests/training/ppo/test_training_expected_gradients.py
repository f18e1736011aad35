"""The gradient that each algorithm has on average, by enumeration: what is unbiased, and what is not by how much.

Every group of responses of a policy by table is drawn with its probability, so no number here is sampled. What the
cases are: `gradient_cases.py`; how they are enumerated through the trainer's update: `expected_gradients.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from expected_gradients import (
    PROMPT,
    Setting,
    coefficients,
    compared,
    earned,
    expected,
    groups_of,
    single,
    true_gradient,
)
from gradient_cases import BY, GOLDEN, LONG, PAGE, RLOO, TABLES, Case, kl_cases, of, reads_on, with_tables, words
from ppo_toy import make_trainer

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores
from finegrained_rlhf.models.distribution import warp_logits
from finegrained_rlhf.rewards import RewardComposer, RewardConfig
from finegrained_rlhf.rl.kl import kl_estimates, kl_over_vocabulary
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig

NUMBERS = json.loads(GOLDEN.read_text(encoding="utf-8"))
NEEDS = {"presets": [pytest.mark.needs("hydra")]}


@cache
def cases(table: str) -> dict[str, Case]:
    return TABLES[table]()


@pytest.mark.parametrize("table", [pytest.param(name, marks=NEEDS.get(name, [])) for name in TABLES])
def test_the_numbers_of_the_page_are_those_of_today(table: str) -> None:
    """A number that moves fails; tests/golden/gradients/make.py writes new ones, and the page's tables."""
    assert list(NUMBERS[table]) == list(cases(table))
    for row, case in cases(table).items():
        found = case.numbers()
        assert found == pytest.approx(NUMBERS[table][row], rel=1e-6, abs=1e-9), row
        if case.factor is not None:
            assert abs(found["error"] - abs(case.factor - 1)) < 1e-10 and found["rescaled"] < 1e-10, row
        else:
            assert found["error"] > 1e-3, row


def test_the_page_has_these_numbers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, NUMBERS) == page
    assert all(f"<!-- gradients: {name} -->" in page for name in TABLES)


def advantages_of(setting: Setting) -> torch.Tensor:
    """What the update multiplies the gradients of all groups by."""
    return coefficients(setting, groups_of(setting)[0].flatten(), single)[0]


@pytest.mark.parametrize("credit", ["outcome", "returns"])
@pytest.mark.parametrize("samples", [2, 3])
def test_a_mean_that_the_response_is_in_leaves_n_minus_one_nths(credit: Any, samples: int) -> None:
    """In every single group, not only on average."""
    alone = GroupAdvantages(credit=credit, position="token")
    setting = of(words, "revised", alone, samples=samples)
    groups = groups_of(setting)[0][::7].flatten()
    found = [
        coefficients(replace(setting, algorithm=algorithm), groups, single)[0]
        for algorithm in (replace(alone, baseline="group_mean"), alone)
    ]
    torch.testing.assert_close(found[0], found[1] * (samples - 1) / samples, atol=1e-14, rtol=0)
    assert float(found[1].abs().max()) > 1e-3


def test_k2_and_the_divergence_inside_the_loss_have_one_gradient() -> None:
    """Both hold the distribution of the states fixed."""
    rows = {name: case for name, case in kl_cases().items() if name in ("k2 in the loss", "exact in the loss")}
    k2, exact = (expected(case.setting)[0] for case in rows.values())
    torch.testing.assert_close(k2, exact, atol=1e-13, rtol=0)
    in_reward = expected(kl_cases()["exact in the reward"].setting)[0]
    torch.testing.assert_close(exact + in_reward, true_gradient(rows["k2 in the loss"].setting), atol=1e-13, rtol=0)


def test_under_top_k_the_mean_of_k3_is_the_divergence_less_what_the_reference_has_elsewhere() -> None:
    """Drawn from S, the top 2 of 5, and scored so; the reference is whole: E[k3] = KL + π_ref(S) − 1, E[k1] = KL."""
    logits = torch.linspace(-1, 2, 5)[None]
    log_p = warp_logits(logits, Sample(1, top_k=2)).double().log_softmax(dim=1)
    log_q = torch.tensor([[0.5, 0.1, -0.3, 0.9, -1.0]], dtype=torch.float64).log_softmax(dim=1)
    drawn = log_p > -torch.inf
    kl, on_support = float(kl_over_vocabulary(log_p, log_q)), float(log_q.exp()[drawn].sum())
    finite = torch.where(drawn, log_p, 0.0)
    means = {}
    for estimator in ("k1", "k3"):
        each = kl_estimates(finite, log_q, torch.ones_like(log_q).long(), estimator)  # type: ignore[arg-type]
        means[estimator] = float((log_p.exp() * each)[drawn].sum())
    assert means["k1"] == pytest.approx(kl, abs=1e-12)
    assert means["k3"] == pytest.approx(kl + on_support - 1, abs=1e-12) and on_support < 0.6


def test_groups_of_one_reward_may_still_teach_where_rewards_are_dense() -> None:
    """So sampling on asks advantages: groups whose sums are equal have a gradient by returns, none by outcome."""
    setting = of(reads_on, "revised", BY["token"])
    groups, weights = groups_of(setting)
    scores = earned(setting)
    alike = scores[groups[:, 0]] == scores[groups[:, 1]]
    assert 0.05 < float(weights[alike].sum()) < 0.95
    shape = (*groups.shape, -1)
    dense = advantages_of(setting).view(shape)[alike].abs().sum(dim=(1, 2)) > 1e-12
    assert 0 < int(dense.sum()) < len(dense)
    assert not advantages_of(replace(setting, algorithm=RLOO)).view(shape)[alike].any()


def test_the_exact_penalty_is_refused_in_both_places_by_estimates() -> None:
    with pytest.raises(ConfigError, match=r"ppo\.kl\.place=both"):
        KLConfig("both", "k1")


@pytest.mark.parametrize(("kind", "shared"), [("t5", False), ("llama", False), ("t5", True), ("llama", True)])
def test_no_value_of_the_trainer_sees_its_own_token(tmp_path: Path, kind: str, shared: bool) -> None:
    """Exchanging token t of responses leaves the values up to t as they are, and moves the next."""
    trainer = make_trainer(tmp_path, kind, shared=shared, max_new_tokens=6)
    rollout = trainer.draws.draw(trainer.data.train[:3], trainer.rollout_config.decoding(), 1)
    t, rows = 1, rollout.response_mask[:, 2].bool()
    assert rows.any()
    ids = rollout.response_ids.clone()
    ids[:, t] = torch.where(ids[:, t] == 5, 6, 5)
    values = [
        trainer._scorer.score_again(one, trainer._micro_batches(one)).values
        for one in (rollout, replace(rollout, response_ids=ids))
    ]
    assert values[0] is not None and values[1] is not None
    torch.testing.assert_close(values[0][:, : t + 1], values[1][:, : t + 1], atol=1e-6, rtol=0)
    assert float((values[0] - values[1])[rows, t + 1].abs().min()) > 1e-6


def test_it_would_show_a_gradient_that_is_wrong() -> None:
    """Of another policy's rewards: the harness does not agree with everything."""
    setting = of(reads_on, "outcome", RLOO)
    other = replace(setting, target=-earned(setting))
    assert compared(expected(setting)[0], true_gradient(other))["error"] == pytest.approx(2.0)


class Numbers:
    """Words are segments: worth 1 with a digit behind the mark, else −1/2; with `reads_on` only where the last has one.

    Token 0 begins a word, " 3.", and token 1 goes on with it, "5": "3." may become "3.5".
    """

    look_ahead = 0

    def __init__(self, reads_on: bool) -> None:
        self.reads_on = reads_on

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [tuple(match.span() for match in re.finditer(r"\S+", text)) for text in responses]
        values = []
        for text, row in zip(responses, spans, strict=True):
            good = text.endswith("5") or not self.reads_on
            values.append(tuple(1.0 if good and text[a:b].endswith("5") else -0.5 for a, b in row))
        return SegmentScores(spans, values)


@pytest.mark.parametrize("reading_on", [False, True])
@pytest.mark.parametrize(("credit", "exact"), [("end", False), ("outcome", True), ("decided", True), ("revised", True)])
def test_what_the_composer_pays_has_the_gradient_of_the_reward(credit: Any, exact: bool, reading_on: bool) -> None:
    """Through `RewardComposer`, on text: `decided` and `revised` are exact for scorers that read on or do not."""
    pieces = [[(" 3.", "5", "")[token] for token in row] for row in LONG.responses]
    texts = ["".join(row).strip() for row in pieces]
    ends = [tuple(len("".join(row[: t + 1]).lstrip()) for t in range(len(row))) for row in pieces]
    index = torch.arange(len(texts))
    rollout = Rollout(
        PROMPT * len(texts), LONG.ids[:, :1], LONG.ids[:, :1], index, 0 * index, 0 * index, (Sample(1),),
        LONG.ids, LONG.mask, torch.zeros(LONG.mask.shape), texts, ends,
    )  # fmt: skip
    composer = RewardComposer(RewardConfig({"numbers": Numbers(reading_on)}, {"numbers": 1.0}, credit=credit))
    scores = composer.score(rollout.row_prompts(), texts)
    total = composer.compose(rollout, scores, prefixes=composer.score_prefixes(rollout)).total
    rows = [{t: float(row[t]) for t in range(LONG.longest) if row[t]} for row in total]
    setting = replace(of(words, "end", BY["token"]), rewards={"one": (1.0, rows)})
    error = compared(expected(setting)[0], true_gradient(setting))["error"]
    assert (error < 1e-10) == exact
    if credit in ("revised", "decided") and not (credit == "decided" and reading_on):
        assert len({t for row, y in zip(rows, LONG.responses, strict=True) for t in row if t < len(y) - 1}) > 1
