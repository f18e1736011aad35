"""DIALKI's losses against hand values and naive loops, and the noise of the posterior regularization."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dialki_toy import dialogue, passage, save_bert, tiny_dialki, whole_batch
from torch.distributions import Categorical, kl_divergence

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.inputs.batches import Targets, collate, targets
from finegrained_rlhf.dialki.model.config import NoiseConfig
from finegrained_rlhf.dialki.model.heads import MASKED, HistoryScores, NextScores
from finegrained_rlhf.dialki.model.objective import (
    RandomState,
    adversarial_loss,
    divergence,
    hashed_noise,
    history_loss,
    jensen_shannon,
    marginal_loss,
    next_loss,
    project,
    start_noise,
    worst_noise,
)

NO_ENTRIES = torch.full((3, 0, 3), -1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def next_scores(n: int = 3, m: int = 4, s: int = 5) -> NextScores:
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(*shape, generator=generator) for shape in ((n, m), (n, m, s), (n, m, s))]
    passages = torch.arange(m)[None] < torch.tensor([4, 2, 3])[:, None]
    spans = (torch.arange(s) < 4) & passages[:, :, None]
    masks = (passages, spans, spans)
    return NextScores(*(d.masked_fill(~k, MASKED) for d, k in zip(draw, masks, strict=True)), passages, spans)  # type: ignore[call-arg]


def log_softmax(row: np.ndarray) -> np.ndarray:
    return row - math.log(sum(math.exp(x - row.max()) for x in row)) - row.max()


def test_next_loss_is_the_sum_of_three_cross_entropies() -> None:
    scores = next_scores()
    none = torch.full((3, 2), -1)
    labels = Targets(
        torch.tensor([3, 1, 0]), torch.tensor([0, 2, 1]), torch.tensor([1, 2, 3]), none, none, none, NO_ENTRIES
    )
    expected = np.zeros(3)
    for n, (p, b, e) in enumerate(zip(labels.passage, labels.begin, labels.end, strict=True)):
        rows = scores.passage[n], scores.begin[n, p], scores.end[n, p]
        for k, (row, gold) in enumerate(zip(rows, (p, b, e), strict=True)):
            kept = row.numpy()[row.numpy() > MASKED / 2].astype(float)
            expected[k] -= log_softmax(kept)[int(gold)]
    assert torch.allclose(next_loss(scores, labels), torch.tensor(expected, dtype=torch.float32), atol=1e-5)


def test_marginal_loss_sums_the_probabilities_of_all_entries() -> None:
    scores = next_scores()
    entries = [[(3, 0, 1), (3, 0, 2), (3, 2, 2), (1, 0, 1)], [(1, 2, 2)], [(0, 1, 3), (2, 0, 0)]]
    padded = torch.full((3, 4, 3), -1)
    for n, row in enumerate(entries):
        padded[n, : len(row)] = torch.tensor(row)
    none, first = torch.full((3, 2), -1), torch.tensor([row[0] for row in entries])
    labels = Targets(*[*first.unbind(-1), none, none, none, padded])
    expected = np.zeros(3)
    for n, row in enumerate(entries):
        passage = np.exp(log_softmax(scores.passage[n].numpy().astype(float)))
        begin, end = (
            [np.exp(log_softmax(part[n, p].numpy().astype(float))) for p in range(4)]
            for part in (scores.begin, scores.end)
        )
        whole = [
            sum(passage[p] for p in {p for p, _, _ in row}),
            sum(passage[p] * begin[p][b] for p, b in {(p, b) for p, b, _ in row}),
            sum(passage[p] * begin[p][b] * end[p][e] for p, b, e in row),
        ]
        expected -= np.diff([0.0, *np.log(whole)])
    found = marginal_loss(scores, labels)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float32), atol=1e-5) and bool((found >= 0).all())
    alone = replace(labels, entries=first[:, None])
    assert torch.allclose(marginal_loss(scores, alone), next_loss(scores, alone), atol=1e-5)
    with pytest.raises(ValueError, match="gold entries"):
        marginal_loss(scores, replace(labels, entries=NO_ENTRIES))


def test_marginal_loss_has_finite_gradients_where_entries_are_padded() -> None:
    scores = next_scores()
    passage = scores.passage.clone().requires_grad_()
    entries = torch.tensor([[[3, 0, 1], [0, 0, 0]], [[1, 2, 2], [-1, -1, -1]], [[0, 1, 3], [-1, -1, -1]]])
    none = torch.full((3, 2), -1)
    labels = Targets(*[*entries[:, 0].unbind(-1), none, none, none, entries])
    marginal_loss(replace(scores, passage=passage), labels).sum().backward()
    assert passage.grad is not None and bool(torch.isfinite(passage.grad).all()) and float(passage.grad.abs().sum()) > 0


def test_history_loss_averages_over_the_labelled_turns_of_each_dialogue() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = HistoryScores(
        *(torch.randn(*shape, generator=generator) for shape in ((2, 3, 2), (2, 3, 2, 4), (2, 3, 2, 4)))
    )
    one = torch.tensor([0])
    known = torch.tensor([[1, -1, 0], [-1, 1, -1]])
    begin, end = torch.tensor([[2, -1, 0], [-1, 3, -1]]), torch.tensor([[3, -1, 0], [-1, 3, -1]])
    expected = 0.0
    for n, count in ((0, 2), (1, 1)):
        for t in range(3):
            p = int(known[n, t])
            if p >= 0:
                rows = scores.passage[n, t], scores.begin[n, t, p], scores.end[n, t, p]
                golds = p, int(begin[n, t]), int(end[n, t])
                expected -= (
                    sum(log_softmax(r.numpy().astype(float))[g] for r, g in zip(rows, golds, strict=True)) / count
                )
    found = history_loss(scores, Targets(one, one, one, known, begin, end, NO_ENTRIES))
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_a_batch_without_history_labels_has_a_finite_loss(bert: Path) -> None:
    model = tiny_dialki(bert)
    chosen, batch = whole_batch(model, [dialogue("a", history=(None,) * 3), dialogue("b", history=(None,))])
    vectors = model.encode(batch)
    loss = history_loss(model.history_scores(vectors, batch), targets(chosen))
    total = next_loss(model.next_scores(vectors, batch), targets(chosen)).sum() + loss
    total.backward()
    assert float(loss.detach()) == 0.0 and bool(torch.isfinite(total))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(g).all() for g in gradients) and any(g.abs().sum() > 0 for g in gradients)


# Jensen–Shannon --------------------------------------------------------------------------------------------------


def test_jensen_shannon_by_hand() -> None:
    """p = (½, ½), q = (1, 0), m = (¾, ¼): ½ (½ ln ⅔ + ½ ln 2) + ½ ln 4⁄3 = ¾ ln 4⁄3."""
    mask = torch.tensor([True, True, False])
    p, q = torch.tensor([0.0, 0.0, 50.0]), torch.tensor([0.0, -200.0, -50.0])
    assert float(jensen_shannon(p, q, mask)) == pytest.approx(0.75 * math.log(4 / 3), abs=1e-6)
    apart = jensen_shannon(torch.tensor([90.0, 0.0]), torch.tensor([0.0, 90.0]), torch.ones(2, dtype=torch.bool))
    assert float(apart) == pytest.approx(math.log(2), abs=1e-6)


def test_jensen_shannon_against_torch_distributions() -> None:
    generator = torch.Generator().manual_seed(2)
    p, q = torch.randn(6, 7, generator=generator), torch.randn(6, 7, generator=generator)
    mask = torch.arange(7) < torch.tensor([7, 5, 3, 2, 1, 0])[:, None]
    found = jensen_shannon(p, q, mask)
    for i, count in enumerate([7, 5, 3, 2]):
        one, two = (logits[i, :count].double().softmax(-1) for logits in (p, q))
        middle = Categorical((one + two) / 2)
        expected = sum(0.5 * kl_divergence(Categorical(part), middle) for part in (one, two))
        assert float(found[i]) == pytest.approx(float(expected), abs=1e-6)
    assert float(found[4]) == float(found[5]) == 0.0
    assert torch.allclose(found, jensen_shannon(q, p, mask), atol=1e-7)
    assert jensen_shannon(p, p + 3.0, mask).abs().max() < 1e-6


def test_padding_is_outside_the_softmax_and_gives_no_gradient() -> None:
    scores = next_scores()
    other = replace(scores, passage=scores.passage + torch.tensor([[0.5, -0.5, 0.0, 0.0]]))
    before = divergence(scores, other)
    leaf = scores.begin.clone().requires_grad_()
    junk = torch.where(scores.span_mask, leaf, torch.tensor(5.0))
    after = divergence(replace(scores, begin=junk), other)
    assert torch.allclose(before, after, atol=1e-6) and float(before) > 0.01
    after.backward()
    assert bool(torch.isfinite(leaf.grad).all()) and not leaf.grad[~scores.span_mask].any()


# Noise -----------------------------------------------------------------------------------------------------------


def test_zero_noise_gives_exactly_the_clean_logits(bert: Path) -> None:
    model = tiny_dialki(bert)
    _, batch = whole_batch(model, [dialogue("a"), dialogue("b", [passage(i, 2) for i in range(3)], (), (None,))])
    with torch.no_grad():
        clean = model.next_scores(model.encode(batch), batch)
        zeros = [torch.zeros(*group.ids.shape, 16) for group in batch.groups]
        noisy = model.next_scores(model.encode(batch, zeros), batch)
        assert all(torch.equal(getattr(clean, k), getattr(noisy, k)) for k in ("passage", "begin", "end"))
        assert float(divergence(clean, noisy)) == pytest.approx(0.0, abs=1e-6)
        ones = [0.1 * torch.ones_like(zero) for zero in zeros]
        assert not torch.equal(clean.begin, model.next_scores(model.encode(batch, ones), batch).begin)


@pytest.mark.parametrize(("radius", "step"), [(0.5, 1.0), (2.0, 0.3), (1.0, 5.0)])
def test_noise_stays_inside_its_radius_and_moves_the_predictions(bert: Path, radius: float, step: float) -> None:
    model = tiny_dialki(bert)
    _, batch = whole_batch(model, [dialogue("a"), dialogue("b", [passage(i, 2) for i in range(3)], (), (None,))])
    config = NoiseConfig(radius, 0.1, step)
    clean = model.next_scores(model.encode(batch), batch)
    start = start_noise(batch, 16, config, seed=5)
    noise = worst_noise(model, batch, clean, start, config)
    for delta, first, group in zip(noise, start, batch.groups, strict=True):
        norms = delta.flatten(1).norm(dim=1)
        assert bool((norms <= radius * (1 + 1e-5)).all()) and bool((norms > 0.2 * min(1.0, step) * radius).all())
        assert torch.allclose(first.flatten(1).norm(dim=1), torch.tensor(0.1 * radius))
        if group.mask is not None:
            assert not delta[group.mask == 0].any()
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        moved = [divergence(clean, model.next_scores(model.encode(batch, n), batch)) for n in (start, noise)]
        opposite = [-delta for delta in noise]
        assert float(moved[1]) > 1.5 * float(moved[0]) > 0
        assert float(divergence(clean, model.next_scores(model.encode(batch, opposite), batch))) > 0


def test_projection() -> None:
    noise = torch.tensor([[[3.0, 4.0]], [[0.3, 0.4]], [[0.0, 0.0]]])
    expected = torch.tensor([[[0.6, 0.8]], [[0.3, 0.4]], [[0.0, 0.0]]])
    assert torch.allclose(project(noise, 1.0), expected)


def test_noise_follows_from_the_passage_alone(bert: Path) -> None:
    keys = torch.tensor([3, 1 << 62, 7])
    numbers = hashed_noise(keys, 40, 8)
    assert -1 <= float(numbers.min()) < -0.95 and 0.95 < float(numbers.max()) < 1
    assert abs(float(numbers.mean())) < 0.06 and abs(float(numbers.var()) - 1 / 3) < 0.03
    assert torch.equal(hashed_noise(keys[2:], 60, 8)[:, :40], numbers[2:])  # neither batch nor padding matters
    assert len(numbers.unique()) > 900
    model = tiny_dialki(bert)
    _, alone = whole_batch(model, [dialogue("b")])
    _, beside = whole_batch(model, [dialogue("a"), dialogue("b")])
    own = {
        int(k): n
        for g, d in zip(alone.groups, start_noise(alone, 16, NoiseConfig(), 9), strict=True)
        for k, n in zip(alone.keys[g.rows], d, strict=True)
    }
    for group, delta in zip(beside.groups, start_noise(beside, 16, NoiseConfig(), 9), strict=True):
        for key, row in zip(beside.keys[group.rows].tolist(), delta, strict=True):
            if key in own:
                width = min(len(row), len(own[key]))
                assert torch.allclose(row[:width], own[key][:width], atol=1e-7)
    assert set(own) <= set(beside.keys.tolist())


def test_adversarial_loss_adds_up_over_dialogues_and_dropout_is_the_same(bert: Path) -> None:
    model = tiny_dialki(bert)
    examples = [dialogue("a"), dialogue("b", [passage(i, 2) for i in range(3)], (), (None,))]
    chosen, _ = whole_batch(model, examples)

    def loss(part: list, dropout: float) -> torch.Tensor:
        model.heads.dropout.p = dropout
        batch = collate(part, model.pad_id)
        before = RandomState.of(model.device)
        clean = model.next_scores(model.encode(batch), batch)
        following = torch.get_rng_state()
        found = adversarial_loss(model, batch, clean, before, NoiseConfig(), seed=3)
        assert torch.equal(torch.get_rng_state(), following)  # later dropout does not depend on the regularization
        return found

    whole = loss(chosen, 0.0)
    assert float(whole) == pytest.approx(float(loss(chosen[:1], 0.0) + loss(chosen[1:], 0.0)), rel=1e-3)
    whole.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.encoder.parameters())
    model.train()
    tiny = NoiseConfig(radius=1e-6)
    batch = collate(chosen, model.pad_id)
    model.heads.dropout.p = 0.5
    before = RandomState.of(model.device)
    clean = model.next_scores(model.encode(batch), batch)
    again = model.next_scores(model.encode(batch), batch)
    assert float(divergence(clean, again)) > 1e-3  # other masks
    assert float(adversarial_loss(model, batch, clean, before, tiny, seed=3)) < 1e-6  # the same masks


@pytest.mark.parametrize("change", [{"radius": 0.0}, {"start": 0.0}, {"start": 2.0}, {"step": -1.0}])
def test_bad_settings_are_refused(change: dict) -> None:
    with pytest.raises(ConfigError):
        NoiseConfig(**change)
