"""Looking ahead in the prompt draws what is drawn without it, whatever the draft says."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from enumeration_toy import EOS, TablePolicy, every_response, five_token_policy, padded
from families_toy import family_policy
from rl_toy import SEQ2SEQ, policy, prompts
from seq2seq_toy import seq2seq_policy
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.models.distribution import warp_logits
from finegrained_rlhf.models.families.fused import fuse
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout import fast, make_engine
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.lookup import PromptLookup
from finegrained_rlhf.rollout.mixers.word_list import WordList
from finegrained_rlhf.rollout.steppers.base import Block

MIXTURES: dict[str, list[Decoding]] = {
    "greedy": [Greedy()],
    "paper": [Sample(4, temperature=0.7, top_k=20)],
    "several": [Greedy(), Sample(3, 1.5, 5, 0.9), Sample(2, 2.0), Greedy()],
}


class Foreseen:
    """A lookup that knows the responses, and is wrong at every third token.

    Args:
        responses: token ids.
    """

    def __init__(self, responses: Sequence[Sequence[int]]) -> None:
        self._responses = responses

    def draft(self, response: Sequence[int], most: int) -> Sequence[int]:
        for whole in self._responses:
            if list(whole[: len(response)]) == list(response):
                ahead = range(len(response), min(len(response) + most, len(whole)))
                return [whole[place] if (place + len(whole)) % 3 else 3 for place in ahead]
        return ()


def roll(engine: Any, asked: Sequence[Prompt], decodings: Sequence[Decoding], tokens: int = 16) -> Rollout:
    return engine.decode(engine.encode(asked), decodings, max_new_tokens=tokens, seed=3, step=1)


def named(kind: str) -> Policy:
    kind, _, fused = kind.partition(", ")
    made = family_policy(kind) if kind in ("gemma2", "qwen3") else policy(kind)
    if fused:
        fuse(made.model)
    return made


@pytest.mark.parametrize(
    ("kind", "mixture"),
    [
        *(("t5", mixture) for mixture in MIXTURES),
        *(("llama", "paper"), ("gpt2", "several"), ("gemma2", "several"), ("qwen3", "paper"), ("mt5", "greedy")),
        *(("t5, fused", "paper"), ("llama, fused", "paper")),
    ],
)
def test_what_is_drawn_is_what_is_drawn_without(kind: str, mixture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, log-probabilities and the support of every step; rows end, and are dropped, at different steps."""
    ours, decodings = named(kind), MIXTURES[mixture]
    asked = prompts("t5" if kind.split(",")[0] in SEQ2SEQ else "gpt2", 5)
    ours.scored = decodings[-1] if isinstance(decodings[-1], Sample) else Sample(1, 0.9, 6)
    plain = roll(make_engine(ours), asked, decodings)
    lengths, counts = plain.lengths().tolist(), Counter[str]()
    rows = [row[:length] for row, length in zip(plain.response_ids.tolist(), lengths, strict=True)]
    foreseen = iter([Foreseen(rows[n : n + len(rows) // 5]) for n in range(0, len(rows), len(rows) // 5)])
    monkeypatch.setattr(fast, "PromptLookup", lambda ids: next(foreseen))
    keep = fast._DraftedLoop._keep

    def counted(self: Any, fed: Sequence[Sequence[int]], *rest: Any) -> list[int]:
        kept = keep(self, fed, *rest)
        counts.update(fed=sum(map(len, fed)), kept=len(kept), steps=1)
        return kept

    monkeypatch.setattr(fast._DraftedLoop, "_keep", counted)
    found = roll(make_engine(ours, draft=5), asked, decodings)
    assert torch.equal(found.response_ids, plain.response_ids) and torch.equal(found.response_mask, plain.response_mask)
    torch.testing.assert_close(found.logprobs, plain.logprobs, atol=2e-5, rtol=1e-5)
    assert found.support is not None and plain.support is not None
    assert [sorted(set(row)) for row in found.support.flatten(0, 1).tolist()] == [
        sorted(set(row)) for row in plain.support.flatten(0, 1).tolist()
    ]
    assert counts["kept"] == sum(lengths) < counts["fed"] and counts["steps"] < 0.7 * max(lengths)
    with torch.no_grad():
        memory = ours.encode(found.prompts)
        scored = ours.logprobs(memory, found.prompt_index, found.response_ids, found.response_mask).logprobs
    if decodings[-1] == ours.scored and len(decodings) == 1:
        torch.testing.assert_close(found.logprobs, scored, atol=2e-5, rtol=1e-5)


class TableStepper:
    """A `BlockStepper` over a table of logits [T, V, V + 1]: they follow from place and last token."""

    def __init__(self, table: Tensor, rows: int) -> None:
        self._table, self.first_tokens = table, torch.full((rows,), table.shape[2] - 1)

    def block(self, tokens: Tensor, block: Block) -> Tensor:
        return self._table[block.places, :, tokens]

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        self.first_tokens = self.first_tokens[rows]


class Always:
    """A lookup that drafts the same, whatever has been drawn."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def draft(self, response: Sequence[int], most: int) -> Sequence[int]:
        return self._ids[len(response) : len(response) + most]


@pytest.mark.parametrize("decoding", [Sample(1, 1.0), Sample(1, 0.6, top_k=2), Sample(1, 1.7, top_p=0.7)])
def test_every_response_has_its_probability_under_every_draft(decoding: Sample) -> None:
    """All noise there is: between two bounds of a cumulative distribution the draw does not change, so one number
    stands for each cell, and a response has the volume of its cells."""
    table, longest = TablePolicy(3), 3
    exact = warp_logits(table.logits.transpose(1, 2).float(), decoding).double().softmax(dim=-1)  # [T, 4, 3]
    cells = []
    for place in range(longest):
        bounds = sorted({0.0, 1.0, *exact[place].cumsum(dim=-1).flatten().clamp(max=1.0).tolist()})
        cells.append([(low, high) for low, high in itertools.pairwise(bounds) if high - low > 1e-12])
    grid = list(itertools.product(*cells))
    noise = torch.tensor([[(low + high) / 2 for low, high in row] for row in grid], dtype=torch.float64)
    volume = [math.prod(high - low for low, high in row) for row in grid]
    owner: Any = SimpleNamespace(device=torch.device("cpu"), eos_ids=(table.end,), scored=None)
    every = {}
    for response in table.responses:
        before = (3, *response[:-1])
        every[response] = math.prod(
            float(exact[n, b, t]) for n, (b, t) in enumerate(zip(before, response, strict=True))
        )
    assert sum(every.values()) == pytest.approx(1.0)
    for drafted in itertools.product(range(3), repeat=2):
        stepper: Any = TableStepper(table.logits, len(grid))
        decodings = [Sample(len(grid), decoding.temperature, decoding.top_k, decoding.top_p)]
        loop = fast._DraftedLoop(owner, stepper, 1, decodings, longest, [Always((*drafted, 0))], 2)  # type: ignore[list-item]
        ids, logprobs, _ = loop.run(noise)
        masses: Counter[tuple[int, ...]] = Counter()
        for row, weight in zip(ids.tolist(), volume, strict=True):
            masses[tuple(row[: row.index(table.end) + 1 if table.end in row else longest])] += weight
        assert masses == pytest.approx({response: mass for response, mass in every.items() if mass}, abs=1e-6)


def five_token_llama() -> Policy:
    """A decoder-only model of the five tokens."""
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=5, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=EOS, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape))
    return CausalPolicy(model, five_token_policy().tokenizer).eval()


@pytest.mark.parametrize("build", [five_token_policy, five_token_llama])
@pytest.mark.parametrize("decoding", [Sample(3000, 1.3), Sample(3000, 1.5, top_k=3), Sample(3000, 1.5, top_p=0.8)])
def test_responses_have_the_asked_distribution(build: Any, decoding: Sample) -> None:
    """χ² over all responses of at most three tokens, from a prompt that has every pair of them."""
    ours, length = build(), 3
    asked = [Prompt("p", "", (2, 3, 4, 2, 4, 3, 2, 2, 0, 3, 3, 4, 4, 1))]
    memory, responses = FastEngine(ours, None).encode(asked), every_response(length)  # type: ignore[arg-type]
    ours.scored = decoding
    ids, mask = padded(responses)
    with torch.no_grad():
        states = ours.hidden(memory, torch.zeros(len(ids), dtype=torch.long), ids)
        warped = warp_logits(ours.head(states), decoding).log_softmax(dim=-1)
    chosen = warped.gather(2, ids.unsqueeze(2)).squeeze(2).masked_fill(mask == 0, 0.0).sum(dim=1).exp()
    assert float(chosen.sum()) == pytest.approx(1.0, abs=1e-4)
    drawn, _, _ = make_engine(ours, draft=2)._draw(memory, [decoding], length, 5, 1)  # type: ignore[attr-defined]
    counts = Counter(tuple(row[: row.index(EOS) + 1 if EOS in row else length]) for row in drawn.tolist())
    expected = {response: decoding.n * float(p) for response, p in zip(responses, chosen, strict=True) if p > 0}
    assert set(counts) <= set(expected)
    likely = [(counts[response], mean) for response, mean in expected.items() if mean > 5]
    rest = decoding.n - sum(count for count, _ in likely), decoding.n - sum(mean for _, mean in likely)
    bins = [*likely, rest] if rest[1] > 1 else likely
    statistic, freedom = sum((count - mean) ** 2 / mean for count, mean in bins), len(bins) - 1
    assert freedom > 10 and abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_the_lookup_finds_the_longest_piece_and_drafts_as_many_as_it_copied() -> None:
    lookup = PromptLookup((5, 6, 7, 8, 9, 4, 6, 7, 1, 2))
    assert lookup.draft([6, 7], 4) == (8, 9)  # of two places the first
    assert lookup.draft([3, 4, 6, 7], 4) == (1, 2)  # three tokens match, two are left
    assert lookup.draft([5, 6, 7, 8], 9) == (9, 4, 6, 7)
    assert lookup.draft([5, 6, 7, 8], 3) == (9, 4, 6)
    assert [lookup.draft(ids, most) for ids, most in (([7], 4), ([], 4), ([1, 2], 4), ([7, 6], 4), ([6, 7], 0))] == [
        ()
    ] * 5


def test_what_does_not_look_ahead_refuses() -> None:
    for engine in ("generate", "continuous"):
        with pytest.raises(ConfigError, match=f"rollout.draft=4 .* expected engine=auto, got {engine}"):
            RolloutConfig(1, draft=4, engine=engine)  # type: ignore[arg-type]
    for ours, mixer, name in (
        (seq2seq_policy("bart"), None, "BartForConditionalGeneration"),
        (family_policy("gpt_neo"), None, "GPTNeoForCausalLM"),
        (policy("t5"), WordList(["cat"]), "a mixer"),
    ):
        with pytest.raises(ConfigError, match=f"rollout.draft=4: decoding by {name} does not look ahead; expected 0"):
            make_engine(ours, mixer=mixer, draft=4)
