"""DialogueWorld: labels, reference, seeds, held-out names, and the limits of word overlap."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.evaluation.lexical import lexical_passage
from finegrained_rlhf.dialki.readers.jsonl import parse_dialogue
from finegrained_rlhf.dialki.readers.reading import DialogueData
from finegrained_rlhf.models.tiny.tokenizers import build_tokenizer
from finegrained_rlhf.worlds.dialogue import lexicon
from finegrained_rlhf.worlds.dialogue.dialogues import DialogueWorldConfig, WorldDialogue
from finegrained_rlhf.worlds.dialogue.make import MakeDialogueWorld, to_row


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


def test_every_turn_rests_on_the_fact_that_answers_it() -> None:
    """Replay each dialogue from its words alone: the place that is spoken of, and the attribute."""
    kinds: Counter[str] = Counter()
    for dialogue in small(train=300, world=DialogueWorldConfig()).draw()["train"]:
        document = dialogue.document
        spoken: list[str] = []
        attribute = ""
        pairs = zip(dialogue.turns[::2], dialogue.turns[1::2], dialogue.kinds, strict=True)
        for user, agent, kind in pairs:
            kinds[kind] += 1
            named = [name for name in document.names if name in user.text]
            if named:
                spoken.append(named[0])
            elif "the other one" in user.text:
                spoken.append(next(name for name in reversed(spoken) if name != spoken[-1]))
            asked = [word for word in lexicon.ATTRIBUTES if f"{word} of" in user.text or f"its {word}?" in user.text]
            attribute = asked[0] if asked else attribute
            assert (bool(named), bool(asked)) == {
                "named": (True, True),
                "pronoun": (False, True),
                "place": (True, False),
                "back": (False, False),
            }[kind]
            knowledge = user.knowledge
            assert knowledge is not None and knowledge == agent.knowledge and knowledge.begin == knowledge.end
            passage = document.passages[knowledge.passage]
            assert passage.title == spoken[-1]
            value = agent.text.removesuffix(".")
            assert passage.spans[knowledge.begin] == f"{attribute}: {value}"
    assert set(kinds) == set(lexicon.KINDS) and min(kinds.values()) > 20


def test_back_is_the_place_before_the_present_one_also_after_a_return() -> None:
    config = DialogueWorldConfig(questions=(8, 8), kinds={"named": 0, "pronoun": 0.01, "place": 1, "back": 3})
    found = 0
    for dialogue in small(world=config).draw()["train"]:
        places = [turn.knowledge.passage for turn in dialogue.turns[::2] if turn.knowledge]
        for i, kind in enumerate(dialogue.kinds):
            if kind == "back" and dialogue.kinds[i - 1] == "back":
                found += 1
                assert places[i] == places[i - 2]
    assert found > 50


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
    for split in MakeDialogueWorld.splits:
        texts = [(tmp_path / name / f"{split}.jsonl").read_bytes() for name in "abc"]
        assert texts[0] == texts[1] != texts[2]
        reading = DialogueData(str(tmp_path / "a" / f"{split}.jsonl")).read()
        assert not reading.skipped and set(reading.report()["gold"]) == {"1"}
        assert all(example.unseen is (split == "unseen") for example in reading.examples)
        assert all(turn.knowledge for example in reading.examples for turn in example.turns)
        assert len(reading.examples) == {"train": 60}.get(split, 20)
        assert all(example.response and example.turns[-1].role == "user" for example in reading.examples)
    rows = [json.loads(line) for line in (tmp_path / "a/world.jsonl").read_text().splitlines()]
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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_word_overlap_with_the_last_turn_is_not_enough(seed: int) -> None:
    """What the world must hold to count: BM25 on the last turn finds at most 0.6 of the passages."""
    for split in ("test", "unseen"):
        dialogues = MakeDialogueWorld("unused", seed=seed, train=0, dev=0, test=120, unseen=120).draw()[split]
        examples = [example for one in dialogues for example in parse_dialogue(to_row(one, False, True))]
        right = sum(lexical_passage(example) == example.gold[0].passage for example in examples)
        assert right / len(examples) <= 0.6


def test_skew_asks_for_earlier_attributes_more_often() -> None:
    asked: dict[float, Counter[str]] = {}
    for skew in (0.5, 1.0):
        dialogues = small(world=DialogueWorldConfig(skew=skew), train=200).draw()["train"]
        spans = [
            one.document.passages[t.knowledge.passage].spans[t.knowledge.begin]
            for one in dialogues
            for t in one.turns[:1]
            if t.knowledge
        ]
        asked[skew] = Counter(span.partition(":")[0] for span in spans)
    first, last = lexicon.ATTRIBUTES[0], lexicon.ATTRIBUTES[-1]
    assert asked[0.5][first] > 4 * asked[0.5][last] and asked[1.0][first] < 2 * asked[1.0][last]


def test_agents_digress_in_training_only_and_name_what_they_tell() -> None:
    splits = small(train=300, world=DialogueWorldConfig(digression=0.4)).draw()
    strayed = 0
    for dialogue in splits["train"]:
        for user, agent in zip(dialogue.turns[::2], dialogue.turns[1::2], strict=True):
            if user.knowledge != agent.knowledge:
                strayed += 1
                passage = dialogue.document.passages[agent.knowledge.passage]
                value = passage.spans[agent.knowledge.begin].partition(": ")[2]
                assert agent.text == f"{passage.title}: {value}."
    answers = sum(len(dialogue.turns) // 2 for dialogue in splits["train"])
    assert 0.35 < strayed / answers < 0.45
    for split in MakeDialogueWorld.splits[1:]:
        turns = [one.turns for one in splits[split]]
        assert all(u.knowledge == a.knowledge for t in turns for u, a in zip(t[::2], t[1::2], strict=True))


def test_echo_names_the_place_in_the_answer() -> None:
    world = small(world=DialogueWorldConfig(echo=1.0))
    for dialogue in world.draw()["dev"]:
        for turn in dialogue.turns[1::2]:
            assert turn.knowledge and turn.text.startswith(dialogue.document.names[turn.knowledge.passage])


def test_bad_configurations_are_refused() -> None:
    kinds = {"named": 1.0, "pronoun": 0.0, "place": 0.0, "back": 0.0}
    for bad in ({"passages": (5, 8)}, {"passages": (9, 8)}, {"facts": 1}, {"facts": 9}, {"questions": (0, 2)}):
        with pytest.raises(ConfigError, match="world"):
            DialogueWorldConfig(**bad)  # type: ignore[arg-type]
    for given in (kinds, {"pronoun": 1.0}):
        with pytest.raises(ConfigError, match=r"world\.kinds"):
            DialogueWorldConfig(kinds=given)
    for name in ("echo", "digression"):
        with pytest.raises(ConfigError, match=rf"world\.{name}"):
            DialogueWorldConfig(**{name: 2})
    with pytest.raises(ConfigError, match=r"world\.skew"):
        DialogueWorldConfig(skew=0)
    for changes in ({"dev": -1}, {"documents": 0}, {"held_out": 0.0}, {"held_out": 0.95}, {"answers": "none"}):
        with pytest.raises(ConfigError):
            small(**changes)
