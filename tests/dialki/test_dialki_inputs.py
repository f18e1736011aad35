"""From dialogues to tensors: the layout, what is cut and counted, and what is drawn for a training step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dialki_toy import dialogue, passage, tokenizer

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.dialki.inputs.batches import (
    collate,
    passages_to_search,
    passages_to_train,
    targets,
)
from finegrained_rlhf.dialki.inputs.examples import EncodedExample, InputConfig, InputEncoder, InputReport
from finegrained_rlhf.dialki.inputs.history_labels import keep_history_labels
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.dialogue.tokens import ROLE_TOKENS


class Counting:
    """The toy tokenizer with role tokens; remembers what it was asked to tokenise."""

    def __init__(self) -> None:
        import copy

        self.inner = copy.deepcopy(tokenizer())
        self.inner.add_special_tokens({"extra_special_tokens": list(ROLE_TOKENS.values())})
        self.asked: list[str] = []

    def __call__(self, texts: list[str], **options: Any) -> SimpleNamespace:
        self.asked += texts
        return SimpleNamespace(input_ids=self.inner(texts, **options)["input_ids"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture(scope="module")
def words() -> Counting:
    return Counting()


def encode(
    words: Counting, *examples: Any, limit: int = 200, context: int = 100, training: bool = False, suffix: str = ""
) -> Any:
    return InputEncoder(words, InputConfig(limit, context, suffix)).encode(examples, training)


def text(words: Counting, item: EncodedExample, number: int) -> str:
    decoded = words.decode(item.input_ids(number).tolist())
    for token in ("<s>", "</s>", "<unk>", "<user>", "<agent>"):
        decoded = decoded.replace(token, f" {token} ")
    return " ".join(decoded.split())


def test_layout(words: Counting) -> None:
    (item,), report = encode(words, dialogue("d"))
    assert text(words, item, 1) == (
        "<s> <user> tell me wall lamp of <unk> <agent> tell me roof wall of <unk> <user> tell me door roof of <unk> "
        "</s> roof </s> <s> the roof is blue . <s> the roof is green . <s> the roof is white . </s>"
    )
    ids = item.input_ids(1)
    assert len(ids) == item.lengths[1]
    roles = {word: words.convert_tokens_to_ids(word) for word in ROLE_TOKENS.values()}
    assert [int(ids[start]) for start in item.turn_starts] == [roles["<user>"], roles["<agent>"], roles["<user>"]]
    assert [int(ids[start]) for start in item.span_starts(1)] == [words.cls_token_id] * 3
    assert item.roles == ("user", "agent", "user")
    assert item.history == (Knowledge(2, 0, 2), Knowledge(0, 1, 1), None) and item.gold == (Knowledge(1, 0, 1),)
    assert report == InputReport(examples=1, passages=4, history_labels=2)
    (with_suffix,), _ = encode(words, dialogue("d"), suffix=".")
    assert (
        text(words, with_suffix, 0).startswith("<s> <user> . tell me")
        and len(with_suffix.context) == len(item.context) + 3
    )


def test_turns_and_passages_are_tokenised_once() -> None:
    words = Counting()
    encoder = InputEncoder(words, InputConfig(200, 100))
    first = dialogue("d")
    longer = replace(first, id="e", turns=(*first.turns, replace(first.turns[1]), replace(first.turns[0])))
    (one, two), _ = encoder.encode([first, longer])
    assert len(words.asked) == len(set(words.asked)) == 3 + 4 + 12  # turns, titles, spans
    assert all(a is b for a, b in zip(one.passages, two.passages, strict=True))
    encoder.encode([first])
    assert len(words.asked) == 19


@pytest.mark.parametrize("limit", range(34, 76, 3))
@pytest.mark.parametrize("context", [5, 14, 24])
def test_what_is_cut_is_counted(words: Counting, limit: int, context: int) -> None:
    example = dialogue("d", [passage(0, 2), passage(1, 5)], [Knowledge(1, 2, 3)], (None, Knowledge(1, 4, 4), None))
    (full,), _ = encode(words, example)
    (item,), report = encode(words, example, limit=limit, context=context)
    history = full.context[1:-1]
    assert item.context.tolist() == [full.context[0], *history[:context], full.context[-1]]
    assert item.turn_starts == tuple(start for start in full.turn_starts if start <= context)
    for number in range(2):
        body = full.input_ids(number)[len(full.context) : -1]
        ids = item.input_ids(number)
        assert len(ids) <= limit and ids.tolist() == [*item.context, *body][: limit - 1] + [full.sep_id]
        shift = len(full.context) - len(item.context)
        ends = [*(full.span_starts(number)[1:] - 1), len(full.input_ids(number)) - 2]
        whole = sum(end - shift < limit - 1 for end in ends)  # the last token of the span is left
        assert item.candidates[number] == whole == len(item.span_starts(number))
    assert report.contexts_cut == int(context < len(history))
    assert report.turns_lost == 3 - len(item.turn_starts) == 3 - len(item.history)
    assert report.spans_lost == 7 - sum(item.candidates)
    assert report.passages_cut == sum(full.lengths[i] - len(full.context) + len(item.context) > limit for i in (0, 1))
    lost = item.candidates[1] < 4
    assert report.gold_lost == int(lost) == 1 - len(item.gold)
    label_left = len(item.turn_starts) > 1
    assert report.history_labels == int(label_left)
    assert report.history_labels_lost == int(label_left and item.candidates[1] < 5)
    kept, counts = encode(words, example, limit=limit, context=context, training=True)
    assert len(kept) == int(not lost) and counts.dropped == int(lost)


def test_training_examples_without_gold_are_dropped_and_counted(words: Counting) -> None:
    kept, report = encode(words, dialogue("a", gold=()), dialogue("b"), training=True)
    assert [item.example.id for item in kept] == ["b"] and report.unlabelled == 1 and report.examples == 2
    assert "1 unlabelled" in str(report) and report.to_json()["unlabelled"] == 1
    kept, report = encode(words, dialogue("a", gold=()), dialogue("b"))
    assert len(kept) == 2 and report.unlabelled == 0


def test_one_of_several_golds_is_enough(words: Counting) -> None:
    example = dialogue("a", [passage(0, 9), passage(1, 2)], [Knowledge(0, 8, 8), Knowledge(1, 0, 0)], (None,))
    (item,), report = encode(words, example, limit=40, context=20, training=True)
    assert item.gold == (Knowledge(1, 0, 0),) and report.gold_lost == 1 and report.dropped == 0


def test_no_candidate_at_all_is_one_clear_error(words: Counting) -> None:
    with pytest.raises(DataError, match="record long, field passages: no span fits into 12 tokens"):
        encode(words, dialogue("long"), limit=12, context=6)
    assert encode(words, dialogue("long"), limit=12, context=6, training=True)[1].dropped == 1
    with pytest.raises(ConfigError):
        InputConfig(max_length=10, max_context=6)
    with pytest.raises(ModelError, match="needs the tokens <user>"):
        InputEncoder(tokenizer(), InputConfig())


# What is drawn ---------------------------------------------------------------------------------------------------


def test_passages_of_a_training_step(words: Counting) -> None:
    gold = [Knowledge(2, 0, 0), Knowledge(4, 1, 2)]
    (item,), _ = encode(words, dialogue("d", [passage(i) for i in range(8)], gold))
    seen: set[int] = set()
    golds = set()
    for step in range(60):
        chosen = passages_to_train(item, 4, seed=0, step=step)
        assert chosen == passages_to_train(item, 4, seed=0, step=step)
        assert len(chosen.passages) == 4 and chosen.gold in gold
        assert list(chosen.passages) == sorted(set(chosen.passages))
        assert {2, 4} & set(chosen.passages) == {chosen.gold.passage}  # no gold passage is a negative
        seen |= set(chosen.passages)
        golds.add(chosen.gold)
    assert seen == set(range(8)) and golds == set(gold)
    assert passages_to_train(item, 1, 0, 1).passages == (passages_to_train(item, 1, 0, 1).gold.passage,)
    assert len(passages_to_train(item, 99, 0, 1).passages) == 7
    different = {passages_to_train(item, 4, seed, 1).passages for seed in range(20)}
    assert len(different) > 5


def test_all_gold_entries_of_a_training_step(words: Counting) -> None:
    gold = [Knowledge(2, 0, 0), Knowledge(2, 2, 2), Knowledge(4, 1, 2), Knowledge(6, 0, 0)]
    (item,), _ = encode(words, dialogue("d", [passage(i) for i in range(8)], gold))
    met: set[Knowledge] = set()
    for step in range(40):
        chosen = passages_to_train(item, 4, 0, step, "all")
        right = {2, 4, 6} & set(chosen.passages)
        assert len(chosen.passages) == 4 and len(right) == 2 and chosen.gold in chosen.all_gold
        assert chosen.all_gold == tuple(known for known in gold if known.passage in right)
        met |= set(chosen.all_gold)
        found = targets([chosen])
        assert [[chosen.passages[p], b, e] for p, b, e in found.entries[0].tolist()] == [
            [known.passage, known.begin, known.end] for known in chosen.all_gold
        ]
    assert met == set(gold)
    assert passages_to_train(item, 1, 0, 1, "all").passages == passages_to_train(item, 1, 0, 1).passages
    (other,), _ = encode(words, dialogue("e", [passage(i) for i in range(3)], gold[:1]))
    both = targets([passages_to_train(item, 4, 0, 1, "all"), passages_to_train(other, 4, 0, 1, "all")])
    assert both.entries.shape[0] == 2 and (both.entries[1, 1:] == -1).all()  # padded
    assert targets([passages_to_train(item, 4, 0, 1)]).entries.shape == (1, 0, 3)


def test_targets_are_places_among_the_chosen(words: Counting) -> None:
    (item,), _ = encode(words, dialogue("d", gold=[Knowledge(3, 0, 1)]))
    chosen = replace(passages_to_search(item, 9), gold=item.gold[0], passages=(2, 3))
    found = targets([chosen])
    assert (found.passage.tolist(), found.begin.tolist(), found.end.tolist()) == ([1], [0], [1])
    assert found.history_passage.tolist() == [[0, -1, -1]]  # newest first; passage 0 was not chosen
    assert (found.history_begin.tolist(), found.history_end.tolist()) == ([[0, -1, -1]], [[2, -1, -1]])


def test_batches_hold_no_more_padding_than_their_longest_input(words: Counting) -> None:
    examples = [dialogue("a", [passage(0, 9), passage(1, 2)], (), (None,)), dialogue("b", gold=())]
    items, _ = encode(words, *examples)
    chosen = [passages_to_search(item, 20) for item in items]
    batch = collate(chosen, 0)
    lengths = [item.lengths[p] for item, c in zip(items, chosen, strict=True) for p in c.passages]
    rows = [int(r) for group in batch.groups for r in group.rows]
    assert sorted(rows) == list(range(6)) and [lengths[r] for r in rows] == sorted(lengths)
    for group in batch.groups:
        assert group.ids.shape[1] == max(lengths[int(r)] for r in group.rows)
    assert batch.owners.tolist() == [0, 0, 1, 1, 1, 1] and batch.places.tolist() == [0, 1, 0, 1, 2, 3]
    assert batch.passage_mask.sum(1).tolist() == [2, 4] and batch.turn_mask.sum(1).tolist() == [1, 3]
    assert batch.span_mask.sum(1).tolist() == [9, 2, 3, 3, 3, 3]
    assert len(set(batch.keys.tolist())) == 6
    assert [c.passages for c in (passages_to_search(item, 1) for item in items)] == [(0,), (0,)]


def test_passages_without_a_candidate_are_left_out(words: Counting) -> None:
    long = replace(passage(0, 1), spans=("red " * 60,))
    (item,), report = encode(words, dialogue("a", [long, passage(1)], (), (None,)), limit=50, context=20)
    assert item.candidates[0] == 0 and report.passages_lost == 1
    assert passages_to_search(item, 20).passages == (1,)


def test_history_labels(words: Counting) -> None:
    known = tuple(Knowledge(i % 4, 0, 0) for i in range(41))
    example = dialogue("d", history=known)
    roles = [turn.role for turn in example.turns]

    def labelled(which: str, seed: int = 0) -> list[bool]:
        return [turn.knowledge is not None for turn in keep_history_labels(example, which, seed).turns]

    assert labelled("all") == [True] * 41 and labelled("none") == [False] * 41
    assert labelled("agent") == [role == "agent" for role in roles]
    half = labelled("half")
    assert all(role == "agent" for role, has in zip(roles, half, strict=True) if has) and 4 < sum(half) < 16
    assert half == labelled("half") and half != labelled("half", 1)
    shorter = replace(example, turns=example.turns[:21])
    short = [turn.knowledge is not None for turn in keep_history_labels(shorter, "half", 0).turns]
    assert short == half[:21]  # a turn keeps its label in every example of its dialogue
    with pytest.raises(ConfigError, match="history_labels"):
        labelled("some")


def test_history_labels_of_the_controls() -> None:
    known = tuple(Knowledge(i % 4, 0, 0) for i in range(41))
    example = dialogue("d", [passage(i, 6) for i in range(4)], history=known)
    assert [turn.knowledge for turn in keep_history_labels(example, "current", 0).turns] == [None] * 40 + [known[40]]
    assert [turn.knowledge for turn in keep_history_labels(example, "earlier", 0).turns] == [*known[:40], None]
    some = replace(example, turns=(replace(example.turns[0], knowledge=None), *example.turns[1:]))
    drawn = keep_history_labels(some, "random", 0)
    labels = [turn.knowledge for turn in drawn.turns]
    assert labels[0] is None and all(label and label.begin == label.end for label in labels[1:])
    assert len(set(labels)) > 12  # spread over all 24 spans; the labels themselves name 4
    assert drawn == keep_history_labels(some, "random", 0) != keep_history_labels(some, "random", 1)
    assert drawn.gold == example.gold and [t.text for t in drawn.turns] == [t.text for t in example.turns]
    shorter = replace(some, turns=some.turns[:21])
    assert keep_history_labels(shorter, "random", 0).turns == drawn.turns[:21]
