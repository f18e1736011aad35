"""DialogueWorld: labels, reference, seeds, held-out names, and the limits of word overlap."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seldom import seldom

from finegrained_lab.experiments.dialki.lexical import lexical_passage, lexical_span
from finegrained_lab.worlds.dialogue import lexicon
from finegrained_lab.worlds.dialogue.dialogues import DialogueWorldConfig, WorldDialogue
from finegrained_lab.worlds.dialogue.make import MakeDialogueWorld, to_row
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.data import DialogueData, parse_dialogue
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.models.tiny_networks import build_tokenizer


def small(path: str = "unused", **changes: Any) -> MakeDialogueWorld:
    """A world of a few dialogues a split."""
    world = MakeDialogueWorld(path, documents=20, unseen_documents=10, train=60, dev=20, test=20, unseen=20)
    return replace(world, **changes)


def names_of(dialogue: WorldDialogue) -> set[str]:
    return set(dialogue.document.names)


def test_no_word_of_the_lexicon_has_two_meanings() -> None:
    lists = [lexicon.FIRST, lexicon.LAST, lexicon.ATTRIBUTES, *lexicon.VALUES.values()]
    words = [word.casefold() for words in lists for word in words]
    assert len(words) == len(set(words)) and all(word.isalpha() for word in words)
    assert len(lexicon.NAMES) == 100 and {len(values) for values in lexicon.VALUES.values()} == {8}


def labels_of(dialogue: WorldDialogue, role: str) -> list[Knowledge | None]:
    return [turn.knowledge for turn in dialogue.turns if turn.role == role]


def test_every_turn_rests_on_the_fact_that_answers_it() -> None:
    """Replay each dialogue from its words alone: the place, and the fact asked for, from what was told before."""
    kinds: Counter[str] = Counter()
    for dialogue in small(train=300).draw()["train"]:
        document = dialogue.document
        facts = [list(facts) for facts in document.facts]
        told: list[tuple[int, int]] = []
        for user, agent, kind in zip(dialogue.turns[::2], dialogue.turns[1::2], dialogue.kinds, strict=True):
            kinds[kind] += 1
            named = [i for i, name in enumerate(document.names) if name in user.text]
            asked = [word for word in lexicon.ATTRIBUTES if f" {word} " in user.text or f"its {word}?" in user.text]
            present = told[-1] if told else None
            place = named[0] if named else present[0]
            if "next at" in user.text:
                back = next(t for t in reversed(told) if t[0] == place)
                assert back[0] != present[0]
            else:
                back = None if kind == "named" else present
            if asked:
                span = next(s for s, (attribute, _) in enumerate(facts[place]) if attribute == asked[0])
            elif "that of" in user.text:
                attribute = facts[present[0]][present[1]][0]
                span = next(s for s, (other, _) in enumerate(facts[place]) if other == attribute)
            else:
                span = back[1] + 1
            assert agent.knowledge == Knowledge(place, span, span)
            assert user.knowledge == (None if back is None else Knowledge(back[0], back[1], back[1]))
            assert agent.text == f"{facts[place][span][1]}."
            told.append((place, span))
    assert set(kinds) == set(lexicon.KINDS) and min(kinds.values()) > 20


@pytest.mark.parametrize("seed", [0, 1])
def test_no_label_is_ever_the_target(seed: int) -> None:
    """Every agent turn is a target; no label of an earlier turn, nor that of the user turn before it, is the same."""
    splits = MakeDialogueWorld("unused", seed=seed, train=200, dev=0, test=200, unseen=100).draw()
    for dialogue in (dialogue for split in splits.values() for dialogue in split):
        for i, turn in enumerate(dialogue.turns):
            if turn.role == "agent":
                assert turn.knowledge not in [earlier.knowledge for earlier in dialogue.turns[:i]]


def test_user_turns_are_of_one_length() -> None:
    """A reader of so many words reads the last turn, and nothing of the turns before."""
    tokenizer = build_tokenizer(MakeDialogueWorld("unused").vocabulary())
    texts = [turn.text for one in small().draw()["train"] for turn in one.turns if turn.role == "user"]
    assert {len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]} == {6}


def test_documents_state_the_same_attributes_in_each_passage() -> None:
    for dialogue in small().draw()["dev"]:
        assert 6 <= len(dialogue.document.names) <= 10
        stated = [sorted(attribute for attribute, _ in facts) for facts in dialogue.document.facts]
        assert all(row == stated[0] and len(set(row)) == 5 for row in stated)


def test_unseen_names_are_held_out_but_their_words_are_not() -> None:
    splits = small(documents=100, train=200).draw()
    seen = set().union(*(names_of(one) for split in MakeDialogueWorld.splits[:3] for one in splits[split]))
    unseen = set().union(*(names_of(one) for one in splits["unseen"]))
    assert not seen & unseen and len(unseen) == 20
    assert {word for name in unseen for word in name.split()} <= {word for name in seen for word in name.split()}
    documents = {split: {one.document.id for one in splits[split]} for split in MakeDialogueWorld.splits}
    assert not documents["unseen"] & (documents["train"] | documents["dev"] | documents["test"])


def test_files_are_deterministic_and_readable(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        small(str(tmp_path / name), seed=seed).run()
    rows = [json.loads(line) for line in (tmp_path / "a/world.jsonl").read_text().splitlines()]
    for split in MakeDialogueWorld.splits:
        texts = [(tmp_path / name / f"{split}.jsonl").read_bytes() for name in "abc"]
        assert texts[0] == texts[1] != texts[2]
        reading = DialogueData(str(tmp_path / "a" / f"{split}.jsonl")).read()
        assert not reading.skipped and set(reading.report()["gold"]) == {"1"}
        assert all(example.unseen is (split == "unseen") for example in reading.examples)
        answers = sum(len(row["kinds"]) for row in rows if row["split"] == split)
        assert len(reading.examples) == (answers if split == "train" else 20)  # every answer of a training dialogue
        assert all(example.response and example.turns[-1].role == "user" for example in reading.examples)
    assert Counter(row["split"] for row in rows) == {"train": 60, "dev": 20, "test": 20, "unseen": 20}
    assert all(len(row["kinds"]) == len(row["places"]) and row["kinds"][0] == "named" for row in rows)


def test_one_example_an_answer_or_one_a_dialogue(tmp_path: Path) -> None:
    for answers in ("last", "all"):
        small(str(tmp_path / answers), answers=answers).run()
    last, every = (DialogueData(str(tmp_path / name / "dev.jsonl")).read().examples for name in ("last", "all"))
    longest = {example.id.rpartition("-")[0]: example for example in every}  # the last one of each dialogue
    assert len(every) > 3 * len(last) == 3 * len(longest)
    for example in last:
        same = longest[example.id]
        assert (same.turns, same.gold, same.response) == (example.turns, example.gold, example.response)


def test_a_split_does_not_depend_on_the_others_sizes() -> None:
    assert small(test=10).draw()["test"] == small(test=20).draw()["test"][:10]
    assert small().draw()["unseen"] == small(train=0).draw()["unseen"]


def test_corpus_covers_every_world(tmp_path: Path) -> None:
    small(str(tmp_path)).run()
    tokenizer = build_tokenizer((tmp_path / "corpus.txt").read_text().splitlines())
    assert len(tokenizer) < 160
    for split in MakeDialogueWorld.splits:
        for line in (tmp_path / f"{split}.jsonl").read_text().splitlines():
            row = json.loads(line)
            texts = [turn["text"] for turn in row["turns"]]
            texts += [text for passage in row["passages"] for text in (passage["title"], *passage["spans"])]
            assert tokenizer.unk_token_id not in tokenizer(" ".join(texts))["input_ids"]


@pytest.mark.parametrize("seed", seldom([0, 1, 2], [0]))
def test_word_overlap_is_not_enough(seed: int) -> None:
    """What the world must hold to count: BM25 finds few of the spans, with the last turn as with all."""
    for split in ("test", "unseen"):
        dialogues = MakeDialogueWorld("unused", seed=seed, train=0, dev=0, test=120, unseen=120).draw()[split]
        examples = [example for one in dialogues for example in parse_dialogue(to_row(one, False, True))]
        for turns in (1, None):
            passages = sum(lexical_passage(example, turns) == example.gold[0].passage for example in examples)
            spans = sum(lexical_span(example, turns) == example.gold[0] for example in examples)
            assert passages <= 0.7 * len(examples) and spans <= 0.25 * len(examples)


def test_skew_asks_for_earlier_attributes_more_often() -> None:
    asked: dict[float, Counter[str]] = {}
    for skew in (0.5, 1.0):
        dialogues = small(world=DialogueWorldConfig(skew=skew), train=200).draw()["train"]
        spans = [
            one.document.passages[t.knowledge.passage].spans[t.knowledge.begin]
            for one in dialogues
            for t in one.turns[1:2]
            if t.knowledge
        ]
        asked[skew] = Counter(span.partition(":")[0] for span in spans)
    first, last = lexicon.ATTRIBUTES[0], lexicon.ATTRIBUTES[-1]
    assert asked[0.5][first] > 4 * asked[0.5][last] and asked[1.0][first] < 2 * asked[1.0][last]


def test_a_share_of_the_training_labels_is_wrong_and_of_no_other(tmp_path: Path) -> None:
    """The same dialogues with and without noise: words are equal, and so many labels name another span."""
    read: dict[float, dict[str, list[Any]]] = {}
    for noise in (0.0, 0.3):
        path = tmp_path / str(noise)
        small(str(path), train=300, train_answers="last", world=DialogueWorldConfig(noise=noise)).run()
        read[noise] = {
            split: DialogueData(str(path / f"{split}.jsonl")).read().examples for split in MakeDialogueWorld.splits
        }
        assert (path / "world.jsonl").read_bytes() == (tmp_path / "0.0/world.jsonl").read_bytes()
    for split in MakeDialogueWorld.splits[1:]:
        assert read[0.0][split] == read[0.3][split]
    right, noisy = read[0.0]["train"], read[0.3]["train"]
    wrong: dict[str, list[bool]] = {"gold": [], "user": [], "agent": []}
    for one, other in zip(right, noisy, strict=True):
        wrong["gold"].append(one.gold != other.gold)
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.text == same.text and (turn.knowledge is None) == (same.knowledge is None)
            if turn.knowledge:
                wrong[turn.role].append(turn.knowledge != same.knowledge)
    assert all(0.2 < sum(found) / len(found) < 0.4 for found in wrong.values())


def test_echo_names_the_place_in_the_answer() -> None:
    world = small(world=DialogueWorldConfig(echo=1.0))
    for dialogue in world.draw()["dev"]:
        for turn in dialogue.turns[1::2]:
            assert turn.knowledge and turn.text.startswith(dialogue.document.names[turn.knowledge.passage])


def test_bad_configurations_are_refused() -> None:
    kinds = {"named": 0.0, "pronoun": 1.0, "place": 0.0, "next": 0.0, "resume": 0.0}
    for bad in (
        {"passages": (5, 8)},
        {"passages": (9, 8)},
        {"facts": 1},
        {"facts": 9},
        {"questions": (0, 2)},
        {"questions": (4, 26)},
    ):
        with pytest.raises(ConfigError, match="world"):
            DialogueWorldConfig(**bad)  # type: ignore[arg-type]
    for given in (kinds, {"pronoun": 1.0}):
        with pytest.raises(ConfigError, match=r"world\.kinds"):
            DialogueWorldConfig(kinds=given)
    for name in ("echo", "noise"):
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            DialogueWorldConfig(**{name: 2})
    with pytest.raises(ConfigError, match="skew"):
        DialogueWorldConfig(skew=0)
    for changes in (
        {"dev": -1},
        {"documents": 0},
        {"held_out": 0.0},
        {"held_out": 0.95},
        {"answers": "none"},
        {"train_answers": "none"},
    ):
        with pytest.raises(ConfigError):
            small(**changes)
