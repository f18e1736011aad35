"""When rewards are paid: nothing that was paid is changed by what comes after it, and corrections add up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores, pad_rows
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.rewards import (
    BaseScorer,
    ComponentConfig,
    OverlongPenalty,
    RewardComposer,
    RewardConfig,
    RewardGate,
)
from finegrained_rlhf.rewards.credit import due_prefixes
from finegrained_rlhf.rl.credit import corrections, decided_tokens, spaced_tokens
from finegrained_rlhf.text.alignment import token_ends
from finegrained_rlhf.text.edits import begun_distance, edit_mass, levenshtein
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.ppo.advantages import segment_ends, unit_rewards

WORDS = build_tokenizer(['a b 3. 5 No. it, so; end. "one" (two) yes! why? - 7 Col. Smith .'])
EOS, LONGEST = 1, 48
SEGMENTER = SpacySegmenter("english")


def drawn(rows: Sequence[Sequence[int]]) -> Rollout:
    ids, mask = pad_rows(rows, pad=0)
    decoded = [token_ends(WORDS, row) for row in rows]
    zeros = torch.zeros(len(rows), dtype=torch.long)
    return Rollout(
        [Prompt("p", "", (1,))], zeros[:1, None], zeros[:1, None], zeros, zeros, zeros, (Sample(len(rows)),),
        ids, mask, torch.zeros(ids.shape), [text for text, _ in decoded], [ends for _, ends in decoded],
    )  # fmt: skip


def worth(text: str) -> float:
    return (crc32(text.encode()) % 33 - 16) / 16


class Local(BaseScorer):
    """A value for each segment that its own text gives."""

    reads_on = False

    def __init__(self, granularity: str = "sentence", look_ahead: int | None = None) -> None:
        self.granularity = granularity
        self.look_ahead = SEGMENTER.look_ahead(granularity) if look_ahead is None else look_ahead

    def value(self, response: str, start: int, end: int) -> float:
        return worth(response[start:end])

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        cut = SEGMENTER.sentences if self.granularity == "sentence" else SEGMENTER.sub_sentences
        spans = [tuple(cut(text)) for text in responses]
        rows = zip(responses, spans, strict=True)
        return SegmentScores(spans, [tuple(self.value(text, *span) for span in row) for text, row in rows])


class ReadsOn(Local):
    """A value for each segment that the whole response gives."""

    reads_on = True

    def value(self, response: str, start: int, end: int) -> float:
        return worth(response.strip() + response[start:end])


class Whole(BaseScorer):
    """One value a response."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [((0, len(text)),) for text in responses]
        return SegmentScores(spans, [(worth(text.strip()),) for text in responses], whole_response=True)


class Refusing(Whole):
    """Has no score of some texts."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        scores, refused = (
            super().score(prompts, responses),
            {i for i, text in enumerate(responses) if len(text) % 3 == 0},
        )
        rows = [() if i in refused else row for i, row in enumerate(scores.spans)]
        values = [() if i in refused else row for i, row in enumerate(scores.values)]
        return SegmentScores(rows, values, True, frozenset(refused))


KINDS = {"local": Local(), "sub": Local("sub_sentence"), "reads_on": ReadsOn(), "whole": Whole()}
WEIGHTS = {"local": 0.5, "sub": 0.25, "reads_on": 1.0, "whole": 0.75}


def composer(credit: str = "end", **changes: object) -> RewardComposer:
    config = replace(RewardConfig(KINDS, WEIGHTS, credit=credit), **changes)  # type: ignore[arg-type]
    return RewardComposer(config, eos_ids=(EOS,), longest=LONGEST)


def paid(ours: RewardComposer, rollout: Rollout, train: bool = True):  # type: ignore[no-untyped-def]
    scores = ours.score(rollout.row_prompts(), rollout.texts)
    return ours.compose(rollout, scores, prefixes=ours.score_prefixes(rollout), train=train)


def rows(seed: int, count: int = 12) -> list[list[int]]:
    rng = random.Random(seed)
    row = lambda: [rng.randrange(2, len(WORDS)) for _ in range(rng.randint(1, LONGEST - 1))]  # noqa: E731
    return [row() + ([EOS] if rng.random() < 0.7 else []) for _ in range(count)]


GATED = {"gates": {"sub": RewardGate("whole", 0.0), "reads_on": RewardGate("sub", 0.0, "sum")}}
FORM = {"end_penalty": 0.5, "overlong": OverlongPenalty(20, 0.25)}
EMPTY = {"settings": dict.fromkeys(KINDS, ComponentConfig(empty=-1.0))}
AGGREGATED = {
    "settings": {"local": ComponentConfig(aggregation="mean"), "sub": ComponentConfig(aggregation="budget", budget=2.0)}
}
READ = {"settings": {"reads_on": ComponentConfig(reading="prefix"), "sub": ComponentConfig(density="response")}}
ADAPTED = {
    "outcome": ("outcome", {}),
    "decided": ("decided", {}),
    "decided, gated": ("decided", GATED | FORM),
    "decided, on prefixes": ("decided", READ | FORM),
    "decided, empty ones paid": ("decided", EMPTY),
    "revised": ("revised", {}),
    "revised, gated": ("revised", GATED | FORM),
    "revised, aggregated": ("revised", AGGREGATED | EMPTY),
    "revised at four places": ("revised", {"revisions": 4}),
    "revised, some prefixes without a score": (
        "revised", {"components": {**KINDS, "whole": Refusing()}},
    ),
}  # fmt: skip


def changed_before(credit: str, changes: dict[str, object], seed: int) -> float:
    """How much of what was paid before t depends on the tokens from t on: other tokens are put behind the first t."""
    rng, first, other = random.Random(-seed), rows(seed), rows(seed + 1000)
    cuts = [rng.randint(1, len(row)) for row in first]
    heads = [row[:cut] for row, cut in zip(first, cuts, strict=True)]
    heads = [[token if token != EOS else 2 for token in head] for head in heads]
    one = [head + row[cut:] for head, row, cut in zip(heads, first, cuts, strict=True)]
    two = [(head + tail)[: max(LONGEST, len(head) + 1)] for head, tail in zip(heads, other, strict=True)]
    one = [row if len(row) > cut else [*row, EOS] for row, cut in zip(one, cuts, strict=True)]
    ours = composer(credit, **changes)
    totals = [paid(ours, drawn(rows)).total for rows in (one, two)]
    return max(float((a[:t] - b[:t]).abs().max()) for a, b, t in zip(*totals, cuts, strict=True))


@pytest.mark.parametrize("name", ADAPTED)
def test_what_was_paid_before_a_token_is_not_changed_by_what_follows(name: str) -> None:
    assert max(changed_before(*ADAPTED[name], seed) for seed in range(12)) == 0.0


@pytest.mark.parametrize("changes", [{}, {"settings": {"reads_on": ComponentConfig(reading="prefix")}}])
def test_where_segments_end_rewards_are_paid_that_later_text_changes(changes: dict[str, object]) -> None:
    assert max(changed_before("end", changes, seed) for seed in range(12)) > 0.1


def test_a_scorer_that_promises_too_short_a_look_ahead_is_caught_by_the_same_test() -> None:
    hasty = {"components": {**KINDS, "sub": Local("sub_sentence", look_ahead=1)}}
    assert max(changed_before("decided", hasty, seed) for seed in range(12)) > 0.1


@pytest.mark.parametrize("changes", [{}, GATED | FORM, AGGREGATED | EMPTY, {"revisions": 3}, {"revisions": "last"}])
def test_corrections_add_up_to_the_reward_of_the_whole_response(changes: dict[str, object]) -> None:
    rollout = drawn([*rows(3), [EOS]])
    whole, revised = (paid(composer(credit, **changes), rollout) for credit in ("outcome", "revised"))
    assert float((revised.total.sum(dim=1) - whole.total.sum(dim=1)).abs().max()) < 1e-6
    for name, component in revised.components.items():
        assert torch.allclose(component.weighted.sum(dim=1), whole.components[name].weighted.sum(dim=1), atol=1e-6)
        assert torch.equal(component.raw, whole.components[name].raw)  # the heat map stays where the segment is
        assert torch.allclose(unit_rewards(component) * component.weight, component.weighted)
        before = (rollout.response_mask.sum(dim=1, keepdim=True) - 1) > torch.arange(component.raw.shape[1])
        early = bool((component.weighted * before).any())
        assert early == (component.corrections is not None and changes.get("revisions") != "last")
        ends = segment_ends(component, rollout.response_mask)
        assert not bool((component.weighted != 0)[~ends].any())


def test_running_values_add_up_by_the_moments_of_the_step() -> None:
    running = {"settings": dict.fromkeys(KINDS, ComponentConfig("running"))}
    rollout = drawn(rows(4))
    whole, revised = (paid(composer(credit, **running), rollout) for credit in ("outcome", "revised"))
    assert float((revised.total.sum(dim=1) - whole.total.sum(dim=1)).abs().max()) < 1e-5


def test_each_payment_is_the_change_from_one_prefix_to_the_next() -> None:
    """By loops: what the reward of the text so far is, less what has been paid."""
    rollout = drawn(rows(5))
    ours = composer("revised", **GATED)
    total = paid(ours, rollout).total
    due = due_prefixes(rollout, "segments", LONGEST)
    for row, text in enumerate(rollout.texts):
        places = [(due.tokens[i], due.texts[i]) for i in range(len(due.rows)) if due.rows[i] == row]
        so_far = 0.0
        for token, prefix in [*places, (int(rollout.lengths()[row]) - 1, text)]:
            so_far += float(total[row, token])
            assert ours.totals(ours.score(rollout.prompts, [prefix]))[0] == pytest.approx(so_far, abs=1e-6)


def test_values_on_prefixes_are_those_of_the_text_that_decided() -> None:
    """`3.` and then `5` is one sentence; two words behind an end tell, and nothing behind them is read."""
    text = "a b end. Smith so it end. a a a"
    ours = composer("decided", settings={"reads_on": ComponentConfig(reading="prefix")})
    scores = ours.score([Prompt("p", "", (1,))], [text])["reads_on"]
    first, second, last = scores.spans[0]
    assert [text[a:b] for a, b in scores.spans[0]] == ["a b end.", "Smith so it end.", "a a a"]
    score = lambda prefix, span: ReadsOn().value(prefix, *span)  # noqa: E731
    assert scores.values[0] == (
        score("a b end. Smith so", first), score("a b end. Smith so it end. a a", second), score(text, last),
    )  # fmt: skip
    rollout = drawn([[*WORDS(text, add_special_tokens=False)["input_ids"], EOS]])
    trace = paid(ours, rollout)
    ends, begun = rollout.token_ends[0], text.index("it end")
    assert trace.components["reads_on"].tokens[0][0] == min(t for t, end in enumerate(ends) if end > begun)
    assert trace.components["reads_on"].tokens[0][-1] == len(ends) - 1
    assert trace.prefixes == 2


def test_who_has_no_value_for_a_segment_of_a_prefix_has_no_score_of_the_response() -> None:
    class Short(ReadsOn):
        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            whole = super().score(prompts, responses)
            keep = [slice(None) if "why?" in text else slice(0, 0) for text in responses]
            return SegmentScores(
                *([row[k] for row, k in zip(part, keep, strict=True)] for part in (whole.spans, whole.values))
            )

    setting = {
        "settings": {"reads_on": ComponentConfig(reading="prefix")},
        "components": {**KINDS, "reads_on": Short()},
    }
    scores = composer("decided", **setting).score([Prompt("p", "", (1,))], ["a b end. Smith so it why?"])
    assert scores["reads_on"].unscored == {0} and scores["reads_on"].spans == [()]


def test_what_cannot_be_paid_so_is_refused() -> None:
    for credit, changes, message in (
        (
            "decided",
            AGGREGATED,
            r"local\.aggregation=mean shares out .* density=response, or use reward.credit=revised",
        ),
        ("revised", READ, r"reads_on\.reading=prefix: no later text changes"),
        ("revised", {"revisions": 0}, "revisions: expected at least 1, got 0"),
        ("revised", {"revisions": 2.5}, "revisions: expected segments, last or a whole number, got 2.5"),
        ("sometimes", {}, "credit: expected one of end, outcome, decided, revised"),
    ):
        with pytest.raises(ConfigError, match=message):
            composer(credit, **changes)
    undeclared = {"components": {**KINDS, "whole": Whole()}, "settings": {"whole": ComponentConfig(reading="prefix")}}
    with pytest.raises(ConfigError, match="whole.reading=prefix: its scorer declares no look_ahead"):
        composer("decided", **undeclared).setup(torch.device("cpu"))
    with pytest.raises(ConfigError, match="look_ahead must be a number of words or None, got -1"):
        composer("decided", components={**KINDS, "sub": Local(look_ahead=-1)}).setup(torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"revisions: the longest response .* is not known here"):
        RewardComposer(composer("revised", revisions=2).config).score_prefixes(drawn(rows(1)))


def test_a_dear_component_may_be_left_to_the_last_token() -> None:
    rollout = drawn(rows(6))
    setting = {"settings": {"whole": ComponentConfig(density="response")}}
    prefixes = composer("revised", **setting).score_prefixes(rollout)
    assert prefixes is not None and set(prefixes.scores) == {"local", "sub", "reads_on"}
    assert paid(composer("revised", **setting), rollout).prefixes == 3 * len(prefixes.rows)
    asked = composer("revised", **setting, gates={"sub": RewardGate("whole", 0.0)}).score_prefixes(rollout)
    assert asked is not None and set(asked.scores) == set(KINDS)


def test_a_process_without_responses_pays_nothing() -> None:
    for credit in ("outcome", "decided", "revised"):
        trace = paid(composer(credit), replace_rows(drawn([[EOS]])))
        assert trace.total.shape[0] == 0 and trace.prefixes == (0 if credit == "revised" else None)


def replace_rows(rollout: Rollout) -> Rollout:
    none = {
        name: getattr(rollout, name)[:0] for name in vars(rollout) if isinstance(getattr(rollout, name), torch.Tensor)
    }
    return replace(rollout, **none, texts=[], token_ends=[])


@given(st.lists(st.floats(-4, 4), max_size=9), st.floats(-4, 4))
def test_corrections_telescope(potentials: list[float], whole: float) -> None:
    made = corrections(potentials, whole)
    assert len(made) == len(potentials) + 1 and sum(made) == pytest.approx(whole, abs=1e-12)
    for i, potential in enumerate(potentials):
        assert sum(made[: i + 1]) == pytest.approx(potential, abs=1e-12)


def test_places_by_hand() -> None:
    assert decided_tokens([0, 4, 5, 9, None], [0, 1, 5, 6, 6]) == (1, 2, 3, 4, 4)
    assert spaced_tokens(3, 200) == (49, 99, 149) and spaced_tokens(1, 5) == (2,)
    assert spaced_tokens(9, 4) == (0, 1, 2, 3)


class Wanted(BaseScorer):
    """Minus what an edit would change; of a beginning, minus what it has changed so far."""

    wanted = "a b it so end. No. a"

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [tuple(SEGMENTER.sentences(text)) or ((0, 0),) for text in responses]
        masses = [edit_mass(text, self.wanted, own) for text, own in zip(responses, spans, strict=True)]
        return SegmentScores(spans, [tuple(-float(mass) for mass in row) for row in masses])

    def score_begun(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        so_far = [-float(begun_distance(words_and_marks(one), words_and_marks(self.wanted))) for one in responses]
        return SegmentScores([((0, len(one)),) for one in responses], [(value,) for value in so_far])


def test_a_beginning_is_not_charged_for_what_is_still_to_come() -> None:
    """Edit mass with `revised`: payments add up to −cost, an empty draft's too, and none is ever taken back."""
    rollout = drawn([*rows(7), [EOS]])
    ours = RewardComposer(RewardConfig({"mass": Wanted()}, {"mass": 1.0}, credit="revised"), eos_ids=(EOS,))
    total = paid(ours, rollout).total
    costs = [levenshtein(words_and_marks(text), words_and_marks(Wanted.wanted)) for text in rollout.texts]
    assert (-total.sum(dim=1)).tolist() == costs and costs[-1] == 9
    assert float(total.max()) <= 0 and bool((total[:, :-1] < 0).any())
    perfect = drawn([[*WORDS(Wanted.wanted, add_special_tokens=False)["input_ids"], EOS]])
    assert not bool(paid(ours, perfect).total.any())
