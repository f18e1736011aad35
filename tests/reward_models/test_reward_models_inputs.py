"""What reward models read: separators in their places, one template, passages cut and nothing else."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch
from feedback_samples import LAKE, record
from hypothesis import given
from hypothesis import strategies as st
from reward_model_samples import CORPUS, cue_records

from finegrained_rlhf.core.batching import length_groups
from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.models.tiny_networks import build_tokenizer, causal_tokenizer, encoder_tokenizer
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.templates import completeness_input, factuality_input, relevance_input, task_text
from reward_models.data.examples import BatchPlan, LabelSettings, RewardExample, build_examples, hold_out
from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder, _shortened, batches_by_length, pad_inputs
from reward_models.kinds import FACTUALITY, PREFERENCE, RELEVANCE, kind_named
from reward_models.parts import answer_parts, factuality_parts, relevance_parts

QUESTION = "What is the lake like?"
TOKENIZER = encoder_tokenizer(build_tokenizer(CORPUS), 512)


def words(encoder: RewardInputEncoder, ids: tuple[int, ...]) -> str:
    return " ".join(encoder.tokenizer.decode(list(ids)).replace("</s>", " </s> ").replace("<s>", " <s> ").split())


def test_relevance_input_and_its_separators() -> None:
    encoder = RewardInputEncoder(TOKENIZER, 512)
    (item,) = encoder.encode([relevance_parts(QUESTION, ["It is cold,", "wide and deep."])])
    expected = " ".join(relevance_input(QUESTION, ["It is cold,", "wide and deep."], "</s>"))
    assert words(encoder, item.ids) == f"<s> {expected} </s>"
    assert [item.ids[i] for i in item.separators] == [TOKENIZER.sep_token_id] * 2
    first, second = item.separators
    assert words(encoder, item.ids[first + 1 : second]) == "It is cold,"
    assert words(encoder, item.ids[second + 1 : -1]) == "wide and deep."
    assert item.ids.count(TOKENIZER.sep_token_id) == 3


def test_factuality_and_completeness_inputs() -> None:
    encoder = RewardInputEncoder(TOKENIZER, 512)
    passages = [LAKE, Passage("", "The lake", ("It is deep.",))]
    context = "wikipage: The lake text: " + LAKE.text + " | wikipage: The lake text: It is deep."
    (item,) = encoder.encode([factuality_parts(QUESTION, passages, ["It is cold.", "Yes!"])])
    expected = " ".join(factuality_input(QUESTION, context, ["It is cold.", "Yes!"], "</s>"))
    assert words(encoder, item.ids) == f"<s> {expected} </s>"
    (whole,) = encoder.encode([answer_parts(QUESTION, passages, "It is cold.")])
    assert words(encoder, whole.ids) == f"<s> {completeness_input(task_text(QUESTION, passages), 'It is cold.')} </s>"
    assert whole.separators == ()


@pytest.mark.parametrize("passages", [[], [LAKE]])
def test_white_space_makes_no_difference(passages: list[Passage]) -> None:
    encoder = RewardInputEncoder(TOKENIZER, 512)
    spaced = [Passage("", p.title + " ", tuple(s.replace(" ", "\n ") for s in p.sentences)) for p in passages]
    for make in (
        lambda p, gap: factuality_parts(QUESTION, p, [f"It{gap}is cold."]),
        lambda p, gap: answer_parts(QUESTION, p, f"It{gap}is cold. "),
    ):
        plain, other = encoder.encode([make(passages, " "), make(spaced, "  ")])
        assert plain == other


@given(limit=st.integers(20, 90))
def test_only_passages_are_cut(limit: int) -> None:
    encoder = RewardInputEncoder(TOKENIZER, limit)
    (whole,) = RewardInputEncoder(TOKENIZER, 512).encode([factuality_parts(QUESTION, [LAKE], ["It is cold.", "Yes!"])])
    try:
        (item,) = encoder.encode([factuality_parts(QUESTION, [LAKE], ["It is cold.", "Yes!"])])
    except DataError as error:
        assert "without its passages" in str(error)
        (bare,) = RewardInputEncoder(TOKENIZER, 512).encode([factuality_parts(QUESTION, [], ["It is cold.", "Yes!"])])
        assert len(bare.ids) > limit
        return
    assert len(item.ids) == min(limit, len(whole.ids)) and item.cut == len(whole.ids) - len(item.ids)
    kept = len(item.ids) - (len(whole.ids) - whole.separators[0])
    tail = whole.ids.index(TOKENIZER.convert_tokens_to_ids("▁answer"))
    assert item.ids[: kept - 2] == whole.ids[: kept - 2]
    assert item.ids[-(len(whole.ids) - tail) :] == whole.ids[tail:]
    assert [len(item.ids) - i for i in item.separators] == [len(whole.ids) - i for i in whole.separators]


def test_the_longest_segments_are_shortened_and_every_separator_stays() -> None:
    """By hand: segments of 2, 20 and 9 tokens in a room of 16 keep 2, 7 and 7."""
    assert [len(p) for p in _shortened([(1,) * 2, (2,) * 20, (3,) * 9], 16)] == [2, 7, 7]
    assert [len(p) for p in _shortened([(1,) * 2, (2,) * 3], 16)] == [2, 3]
    parts = factuality_parts(QUESTION, [LAKE], ["It is cold.", "It is wide and " * 20, "Yes!"])
    (whole,) = RewardInputEncoder(TOKENIZER, 512).encode([parts])
    (item,) = RewardInputEncoder(TOKENIZER, 50, "truncate").encode([parts])
    assert len(item.ids) <= 50 and len(item.separators) == 3 and item.lost > 0 and item.cut > 0
    ends = [*item.separators[1:], len(item.ids) - 1]
    segments = [item.ids[a + 1 : b] for a, b in zip(item.separators, ends, strict=True)]
    whole_ends = [*whole.separators[1:], len(whole.ids) - 1]
    full = [whole.ids[a + 1 : b] for a, b in zip(whole.separators, whole_ends, strict=True)]
    assert segments[0] == full[0] and segments[2] == full[2] and segments[1] == full[1][: len(segments[1])]
    with pytest.raises(DataError, match="without its passages"):
        RewardInputEncoder(TOKENIZER, 50).encode([parts])


def test_cut_inputs_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    encoder = RewardInputEncoder(TOKENIZER, 40)
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            encoder.encode([answer_parts(QUESTION, [LAKE], "It is cold."), answer_parts(QUESTION, [], "Yes!")])
    assert (encoder.inputs_seen, encoder.inputs_cut) == (24, 12)
    assert [r.message.split(" reward")[0] for r in caplog.records] == ["1 of 2", "10 of 20"]


class Counting:
    """A tokenizer that remembers what it was asked to tokenise."""

    def __init__(self, extra: str = "") -> None:
        self._tokenizer = encoder_tokenizer(build_tokenizer([*CORPUS, extra]), 512)
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def __call__(self, texts: list[str], **options: object) -> object:
        self.seen += texts
        return self._tokenizer(texts, **options)


def test_a_text_is_tokenised_once() -> None:
    """Four samples of a prompt, read by two models whose tokenizers are equal, and then by one with another."""
    answers = ["It is cold.", "It is wide.", "It is deep.", "It is cold."]
    first, second, third = Counting(), Counting(), Counting("another vocabulary")
    encoders = [RewardInputEncoder(tokenizer, 512) for tokenizer in (first, second, third)]
    factuality = [factuality_parts(QUESTION, [LAKE], [answer]) for answer in answers]
    whole = [answer_parts(QUESTION, [LAKE], answer) for answer in answers]
    encoders[0].encode(factuality)
    context = [text for text in first.seen if LAKE.text in text]
    assert len(context) == 1 and len(first.seen) == len(set(first.seen))
    found = encoders[1].encode(whole)
    assert second.seen and not set(second.seen) & set(first.seen)
    assert [item.ids for item in found] == [item.ids for item in RewardInputEncoder(TOKENIZER, 512).encode(whole)]
    encoders[2].encode(factuality)
    assert set(third.seen) == set(first.seen)


def test_a_text_forgotten_by_a_full_cache_is_tokenised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_models.encoders.inputs._CACHED_PIECES", 2)
    tokenizer = Counting("a vocabulary of its own")
    encoder, parts = RewardInputEncoder(tokenizer, 512), relevance_parts(QUESTION, ["It is cold.", "It is wide."])
    first, second = encoder.encode([parts]), encoder.encode([parts])
    assert first == second and len(tokenizer.seen) == 2 * len(set(tokenizer.seen))


@given(
    lengths=st.lists(st.integers(1, 60), max_size=8),
    batch_size=st.integers(1, 4),
    overhead=st.sampled_from([0, 9, 500]),
)
def test_groups_of_similar_length_cost_least(lengths: list[int], batch_size: int, overhead: int) -> None:
    groups = length_groups(lengths, batch_size, overhead)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(0 < len(group) <= batch_size for group in groups)
    assert [lengths[i] for group in groups for i in group] == sorted(lengths)

    def cost(sizes: tuple[int, ...]) -> int:
        """Of the sorted lengths in runs of these sizes."""
        rows, total = sorted(lengths), 0
        for size in sizes:
            total += rows[size - 1] * size + overhead
            rows = rows[size:]
        return total

    cuts = [
        sizes
        for count in range(len(lengths) + 1)
        for sizes in itertools.product(range(1, batch_size + 1), repeat=count)
        if sum(sizes) == len(lengths)
    ]
    assert cost(tuple(map(len, groups))) == min(map(cost, cuts))


def test_batches_say_which_inputs_they_hold() -> None:
    inputs = [EncodedInput((3, *[5] * length, 1), (length,)) for length in (300, 10, 310, 11, 20)]
    batches = list(batches_by_length(inputs, 2, 0))
    assert [rows for rows, _ in batches] == [[1, 3], [4], [0, 2]]
    for rows, batch in batches:
        assert batch.mask.sum(dim=1).tolist() == [len(inputs[i].ids) for i in rows]
    assert list(batches_by_length([], 2, 0)) == []


def test_a_tokenizer_without_the_needed_tokens_is_refused() -> None:
    tokenizer = causal_tokenizer(build_tokenizer(CORPUS), 64)
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match="separator"):
        RewardInputEncoder(tokenizer, 64)


def test_collate_lists_separators_in_order() -> None:
    batch = pad_inputs(
        [EncodedInput((3, 1, 5, 1), (1,)), EncodedInput((3, 5, 1), ()), EncodedInput((3, 1, 1), (1, 2))], 0
    )
    assert batch.ids.tolist() == [[3, 1, 5, 1], [3, 5, 1, 0], [3, 1, 1, 0]]
    assert batch.mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert (batch.rows.tolist(), batch.positions.tolist()) == ([0, 2, 2], [1, 1, 2])
    assert (batch.columns.tolist(), batch.width) == ([0, 0, 1], 2)
    assert batch.rows.dtype == torch.long
    assert pad_inputs([EncodedInput((3, 1), ())], 0).width == 0


def test_copies_to_a_gpu_are_page_locked_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors stay where they are here; what counts is how they were asked to move."""
    moves: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: moves.append(("pin",)) or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kw: moves.append((*args, kw)) or self)
    item = EncodedInput((3, 1, 1), (1,))
    pad_inputs([item], 0, "cpu")
    assert moves and all("non_blocking" not in str(move) and move != ("pin",) for move in moves)
    moves.clear()
    pad_inputs([item], 0, "cuda:0")
    to_gpu = [i for i, move in enumerate(moves) if move[0] == "cuda:0"]
    assert len(to_gpu) == 3 and all(moves[i] == ("cuda:0", {"non_blocking": True}) for i in to_gpu)
    assert all(moves[i - 1] == ("pin",) for i in to_gpu)


def test_labels_stand_at_the_separator_before_their_segment() -> None:
    text = "It is cold and wide and deep. It was warm and not so deep."
    feedback = record(text, [("It was warm and not so deep.", "Unverifiable"), ("It is cold and wide", "Irrelevant")])
    encoder, segmenter = RewardInputEncoder(TOKENIZER, 512), SpacySegmenter()
    (relevance,) = build_examples([feedback], LabelSettings(RELEVANCE), encoder, segmenter)
    (factuality,) = build_examples([feedback], LabelSettings(FACTUALITY), encoder, segmenter)
    assert relevance.labels == (1, 0) and factuality.labels == (None, 1)
    for example in (relevance, factuality):
        first, second = example.inputs[0].separators
        assert words(encoder, example.inputs[0].ids[second + 1 : -1]) == "It was warm and not so deep."
        assert words(encoder, example.inputs[0].ids[first + 1 : second]) == "It is cold and wide and deep."
    assert "wikipage" in words(encoder, factuality.inputs[0].ids)
    assert "wikipage" not in words(encoder, relevance.inputs[0].ids)


def test_each_distinct_answer_is_encoded_once() -> None:
    feedback = record("Yes!", others=("It is cold.", "Yes!", "It is wide."), preferences=(1, 0, 2, 2, 1, 1))
    (example,) = build_examples(
        [feedback], LabelSettings(PREFERENCE), RewardInputEncoder(TOKENIZER, 512), SpacySegmenter()
    )
    assert len(example.inputs) == 3 and example.items == 5
    assert example.pairs == ((0, 1), (2, 0), (0, 1), (1, 2), (0, 2))


def test_records_without_labels_are_left_out() -> None:
    only_irrelevant = record("It is cold and wide.", [("It is cold and wide.", "Irrelevant")], preferences=(0,) * 6)
    encoder, segmenter = RewardInputEncoder(TOKENIZER, 512), SpacySegmenter()
    for kind in ("factuality", "preference", "completeness"):
        assert build_examples([only_irrelevant], LabelSettings(kind_named(kind)), encoder, segmenter) == []
    assert len(build_examples([only_irrelevant], LabelSettings(RELEVANCE), encoder, segmenter)) == 1


def test_held_out_records_are_seeded_and_disjoint() -> None:
    records = cue_records(20)
    train, dev = hold_out(records, 0.2, seed=1)
    assert (len(train), len(dev)) == (16, 4)
    assert {r.id for r in train} | {r.id for r in dev} == {r.id for r in records}
    assert [r.id for r in hold_out(records, 0.2, seed=1)[1]] == [r.id for r in dev]
    assert [r.id for r in hold_out(records, 0.2, seed=2)[1]] != [r.id for r in dev]
    assert len(hold_out(records[:2], 0.01, seed=0)[1]) == 1
    with pytest.raises(DataError):
        hold_out(records[:1], 0.5, seed=0)


def fake(length: int, pairs: int = 0) -> RewardExample:
    return RewardExample((EncodedInput((5,) * length, ()),), pairs=((0, 0),) * pairs)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=40), batch=st.integers(1, 8)
)
def test_every_epoch_uses_every_example_once(sizes: list[tuple[int, int]], batch: int) -> None:
    examples = [fake(length, pairs) for length, pairs in sizes]
    plan = BatchPlan(examples, batch, seed=3)
    ends = [0, plan.steps(1), plan.steps(2)]
    for start, end in zip(ends, ends[1:], strict=False):
        steps = [plan.batch(step) for step in range(start + 1, end + 1)]
        assert sorted(id(e) for step in steps for e in step) == sorted(id(e) for e in examples)
        assert all(sum(e.items for e in step) <= batch or len(step) == 1 for step in steps)
    again = BatchPlan(examples, batch, seed=3)
    assert [id(e) for e in again.batch(ends[2])] == [id(e) for e in plan.batch(ends[2])]


def test_batches_hold_similar_lengths() -> None:
    plan = BatchPlan([fake(length) for length in range(1, 65)], 4, seed=0)
    spread = [max(e.length for e in b) - min(e.length for e in b) for b in map(plan.batch, range(1, 17))]
    assert max(spread) == 3
    assert [plan.batch(i)[0].length for i in range(1, 17)] != sorted(plan.batch(i)[0].length for i in range(1, 17))


def test_more_segments_than_separators_fit_leave_the_last_ones_unread(caplog: pytest.LogCaptureFixture) -> None:
    """A separator and a token each for as many of the first segments as fit; they are counted and said."""
    parts = relevance_parts(QUESTION, ["Yes!"] * 60)
    encoder = RewardInputEncoder(TOKENIZER, 40, "truncate")
    with caplog.at_level(logging.WARNING):
        (item,) = encoder.encode([parts])
    before = 40 - 2 - encoder.room(parts)
    read = (40 - 2 - before) // 2
    assert len(item.separators) == read and item.unread == 60 - read and len(item.ids) <= 40
    assert all(item.ids[i] == encoder.sep_id and item.ids[i + 1] != encoder.sep_id for i in item.separators)
    assert encoder.segments_unread == 60 - read and f"and {60 - read} segments not at all" in caplog.text
    with pytest.raises(DataError, match="without its passages"):
        RewardInputEncoder(TOKENIZER, 40).encode([parts])


def test_an_answer_behind_no_passages_loses_its_end() -> None:
    """Where there are no passages, question and answer are one piece."""
    long = answer_parts(QUESTION, [], "It is wide and cold. " * 30)
    (whole,) = RewardInputEncoder(TOKENIZER, 512).encode([long])
    (item,) = RewardInputEncoder(TOKENIZER, 50, "truncate").encode([long])
    assert item.ids == (*whole.ids[:49], whole.ids[-1]) and item.lost == len(whole.ids) - 50
    with pytest.raises(DataError, match="without its passages"):
        RewardInputEncoder(TOKENIZER, 50).encode([long])
