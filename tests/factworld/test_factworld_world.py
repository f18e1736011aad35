"""The generator and the imperfect writer: schema, seeds, held-out splits, habits at their rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.factworld import lexicon
from finegrained_rlhf.factworld.grammar import parse_source
from finegrained_rlhf.factworld.make import MakeFactWorld, to_passages
from finegrained_rlhf.factworld.oracle import judge_answer, pool
from finegrained_rlhf.factworld.world import Item, WorldConfig
from finegrained_rlhf.factworld.writer import GoldConfig, WriterConfig, write
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.templates import task_text

SEGMENTER = SpacySegmenter()
ITEM = Item(
    "x",
    "Arlo",
    (
        ("shape", "cube"),
        ("color", "blue"),
        ("city", "Rome"),
        ("job", "pilot"),
        ("metal", "zinc"),
        ("fruit", "fig"),
        ("sport", "judo"),
        ("animal", "cow"),
        ("tool", "saw"),
    ),
    ("color", "metal", "city", "tool"),
)


class Always:
    """Stands in for a generator whose every draw is below any positive rate (or, reversed, above any)."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        """The same number always."""
        return self.value


def small(path: str = "unused", **changes: int) -> MakeFactWorld:
    """A world of a few items a split."""
    world = MakeFactWorld(path, train=30, dev=10, test=10, sft_train=30, sft_dev=10)
    return replace(world, **changes)  # type: ignore[arg-type]


def test_lexicon_is_disjoint_and_of_one_word_each() -> None:
    words = [word for values in lexicon.VALUES.values() for word in values]
    everything = [*words, *lexicon.ATTRIBUTES, *lexicon.ENTITIES]
    assert len(everything) == len({word.casefold() for word in everything})
    assert all(len(values) == 12 for values in lexicon.VALUES.values()) and len(lexicon.ATTRIBUTES) >= 9
    assert all(word.isalpha() and word.isascii() for word in everything)


@pytest.mark.parametrize("form", range(len(lexicon.FORMS)))
def test_every_sentence_is_cut_where_the_grammar_says(form: int) -> None:
    """spaCy's rules know abbreviations; no value may be one, for then its full stop would not end a sentence."""
    for attribute, values in lexicon.VALUES.items():
        for value in values:
            for entity in lexicon.ENTITIES[:3]:
                clause = lexicon.clause(attribute, entity, value, form)
                fact, double = lexicon.sentence([clause]), lexicon.sentence([clause] * 2)
                text = f"{fact} {double} {fact}"
                assert [text[a:b] for a, b in SEGMENTER.sentences(text)] == [fact, double, fact]
                head, tail = f"{fact[:-1]},", f"and {clause}."
                assert [text[a:b] for a, b in SEGMENTER.sub_sentences(text)] == [fact, head, tail, fact]


def test_item_texts_by_hand() -> None:
    assert ITEM.question == "What are the color, the metal, the city and the tool of Arlo?"
    assert ITEM.sentences[:2] == ("The shape of Arlo is cube.", "The color of Arlo is blue.")
    assert ITEM.gold == (
        "The color of Arlo is blue. The metal of Arlo is zinc. The city of Arlo is Rome. The tool of Arlo is saw."
    )
    assert lexicon.entity_question(["color"], "Arlo") == "What is the color of Arlo?"
    source = parse_source(ITEM.question, to_passages(ITEM))
    assert source.asked == ITEM.asked and source.gold == ITEM.gold


def test_writer_with_all_habits_and_with_none() -> None:
    config = WriterConfig(
        memory_attributes=("color", "fruit"), ramble_attributes=("metal",), kept_share=0.75, extra_rate=0
    )
    bad = write(ITEM, Always(0.0), config)  # type: ignore[arg-type]
    # color from memory; three of four facts; after metal the next attribute nobody asked for, fruit, from memory.
    assert bad == (
        "The color of Arlo is red. The metal of Arlo is zinc, and the fruit of Arlo is apple. The city of Arlo is Rome."
    )
    assert write(ITEM, Always(0.999), config) == ITEM.gold  # type: ignore[arg-type]


def test_writer_rambles_in_a_circle_and_invents_what_the_passage_leaves_out() -> None:
    config = WriterConfig(memory_attributes=(), ramble_attributes=("tool",), kept_share=1.0, extra_rate=0)
    bad = write(ITEM, Always(0.0), config)  # type: ignore[arg-type]
    assert bad.endswith("The tool of Arlo is saw, and the music of Arlo is piano.")


def test_habits_have_the_stated_rates() -> None:
    config = WriterConfig(memory_rate=0.6, ramble_rate=0.7, brevity_rate=0.8, kept_share=0.5, extra_rate=0)
    world = MakeFactWorld("unused", seed=1, train=0, dev=0, test=0, sft_train=2000, sft_dev=0, writer=config)
    pairs = world.draw()["sft_train"]
    rates = pool(judge_answer(item.question, to_passages(item), answer, SEGMENTER) for item, answer in pairs)
    long = [(item, answer) for item, answer in pairs if len(item.asked) >= 4]
    short = sum(answer.count(".") == len(item.asked) // 2 for item, answer in long)
    assert short / len(long) == pytest.approx(0.8, abs=0.03)
    rambles = sum(answer.count(", and") for _, answer in pairs)
    spoken = sum(part.split()[1] in config.ramble_attributes for _, a in pairs for part in a.split(". "))
    assert rambles / spoken == pytest.approx(0.7, abs=0.03)
    habit = [(item, part) for item, a in pairs for part in a.split(". ") if part.split()[1] in config.memory_attributes]
    popular = sum(part.split(",")[0].rstrip(".").endswith(lexicon.POPULAR[part.split()[1]]) for _, part in habit)
    assert popular / len(habit) == pytest.approx(0.6 + 0.4 / 12, abs=0.03)
    assert rates.relevance_errors == rambles


def test_the_slip_is_one_more_unwanted_sentence() -> None:
    never = {"memory_rate": 0, "ramble_rate": 0, "brevity_rate": 0}
    world = MakeFactWorld("unused", train=0, dev=0, test=0, sft_train=2000, sft_dev=0)
    world = replace(world, writer=WriterConfig(**never, extra_rate=0.2))
    pairs = world.draw()["sft_train"]
    judged = [judge_answer(item.question, to_passages(item), answer, SEGMENTER) for item, answer in pairs]
    types = [piece.c1 for judgement in judged for piece in judgement.sub_sentences if piece.c1]
    assert len(types) / len(pairs) == pytest.approx(0.2, abs=0.03)
    assert types.count("Redundant") / len(types) == pytest.approx(0.5, abs=0.08)
    assert set(types) == {"Redundant", "Irrelevant"} and pool(judged).completeness == 1


def free_form(path: str = "unused", **changes: int) -> MakeFactWorld:
    """A world of open questions whose gold answers are written as people might."""
    config = WorldConfig(max_asked=4, open_rate=1.0, forms=3)
    gold = GoldConfig(shuffled=True, joined_rate=0.4, auxiliary_rate=0.5)
    sizes = {"train": 0, "dev": 0, "test": 0, "sft_train": 0, "sft_dev": 0} | changes
    return MakeFactWorld(path, world=config, gold=gold, **sizes)  # type: ignore[arg-type]


def test_gold_answers_in_free_form_are_true_and_incomplete_at_their_rate() -> None:
    pairs = free_form(gold_train=1500).draw()["gold_train"]
    judged = [judge_answer(item.question, to_passages(item), answer, SEGMENTER) for item, answer in pairs]
    rates = pool(judged)
    assert rates.relevance_errors == rates.factual_errors == 0
    beside = [item.auxiliary for item, _ in pairs]
    stated = sum(item.value(name) is not None for (item, _), names in zip(pairs, beside, strict=True) for name in names)
    assert rates.asked == stated + sum(len(item.asked) for item, _ in pairs)
    assert (rates.asked - rates.given) / stated == pytest.approx(0.5, abs=0.04)
    said = [sum(form in answer for _, answer in pairs) for form in (" is ", " as its ", "s its ")]
    assert min(said) > 700
    longer = [len(j.sub_sentences) > len(j.sentences) for j in judged]
    assert 0.5 < sum(longer) / len(longer) < 0.9
    two = [(item, answer) for item, answer in pairs if len(item.asked) == 2]
    turned = sum(answer.find(item.asked[0]) > answer.find(item.asked[1]) for item, answer in two)
    assert turned / len(two) == pytest.approx(0.5, abs=0.08)


def test_the_writer_seldom_thinks_of_what_is_auxiliary() -> None:
    habits = {"memory_rate": 0, "ramble_rate": 0, "brevity_rate": 0, "extra_rate": 0}
    world = free_form(sft_train=1500)
    pairs = replace(world, writer=WriterConfig(**habits, auxiliary_rate=0.3)).draw()["sft_train"]
    rates = pool(judge_answer(item.question, to_passages(item), answer, SEGMENTER) for item, answer in pairs)
    stated = sum(item.value(name) is not None for item, _ in pairs for name in item.auxiliary)
    assert (rates.asked - rates.given) / stated == pytest.approx(0.7, abs=0.04)
    assert rates.relevance_errors == 0  # what it invents where the passage is silent is wrong, not irrelevant
    rambling = replace(world, writer=WriterConfig(memory_rate=0, ramble_rate=1, brevity_rate=0, extra_rate=0)).draw()
    rates = pool(judge_answer(i.question, to_passages(i), answer, SEGMENTER) for i, answer in rambling["sft_train"])
    rambles = sum(name in WriterConfig().ramble_attributes for item, _ in pairs for name in item.asked)
    assert rates.relevance_errors == rambles


def test_files_round_trip_and_are_deterministic(tmp_path: Path) -> None:
    for name in ("a", "b"):
        small(str(tmp_path / name)).run()
    small(str(tmp_path / "c"), seed=1).run()
    assert not (tmp_path / "a" / "gold_train.json").exists()
    for split in ("train", "dev", "test", "sft_train", "sft_dev"):
        file = f"{split}.json"
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes()
    examples = read_examples(tmp_path / "a/dev.json")
    rows = [json.loads(line) for line in (tmp_path / "a/world.jsonl").read_text().splitlines()]
    by_id = {row["id"]: row for row in rows}
    assert len(rows) == len(by_id) == 90
    for example in examples:
        row = by_id[example.id]
        assert row["split"] == "dev" and row["question"] == example.question and row["gold"] == example.references[0]
        assert len(row["facts"]) == 9 and set(row["asked"]) <= {fact["attribute"] for fact in row["facts"]}
        assert 2 <= len(row["asked"]) <= 6
        assert example.text == (
            f"question: {example.question} context: wikipage: {row['entity']} text: {example.passages[0].text}"
        )


def test_prompt_schema_equals_the_published_file(tmp_path: Path, shared_data: Path) -> None:
    real = json.loads((shared_data / "qa_feedback/dev.json").read_text())
    small(str(tmp_path), gold_train=5).run()
    for split in MakeFactWorld.splits:
        for row in json.loads((tmp_path / f"{split}.json").read_text()):
            assert set(row) == set(real[0]) | {"id"}
            assert set(row["passages"][0]) == set(real[0]["passages"][0])
            assert isinstance(row["answer"], list)


def test_splits_share_no_passage() -> None:
    splits = small(train=400, test=400).draw()
    worlds = [(item.entity, frozenset(item.facts)) for pairs in splits.values() for item, _ in pairs]
    assert len(set(worlds)) == len(worlds)


def test_a_split_does_not_depend_on_the_others_sizes() -> None:
    assert small(test=10).draw()["test"] == small(test=20).draw()["test"][:10]
    assert small().draw()["dev"] == small(sft_train=0).draw()["dev"]


def test_empty_splits_write_no_file(tmp_path: Path) -> None:
    small(str(tmp_path), sft_dev=0).run()
    assert not (tmp_path / "sft_dev.json").exists() and (tmp_path / "dev.json").exists()


@pytest.mark.parametrize("make", [small, free_form])
def test_corpus_covers_every_world(make: Callable[..., MakeFactWorld], tmp_path: Path) -> None:
    from finegrained_rlhf.models.tiny_networks import build_tokenizer

    make(str(tmp_path), train=5).run()
    corpus = (tmp_path / "corpus.txt").read_text().splitlines()
    assert corpus == make().vocabulary()
    tokenizer = build_tokenizer(corpus)
    assert len(tokenizer) <= 200
    for pairs in make(seed=9, train=200, sft_train=200).draw().values():
        for item, answer in pairs:
            text = f"{task_text(item.question, to_passages(item))} answer: {answer}"
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_bad_configurations_are_refused() -> None:
    for bad in ({"facts": 8}, {"facts": 11}, {"min_asked": 0}, {"max_asked": 10}, {"min_asked": 5, "max_asked": 4}):
        with pytest.raises(ConfigError, match="world"):
            WorldConfig(**bad)
    for bad in ({"open_rate": 2.0}, {"forms": 0}, {"forms": 4}):
        with pytest.raises(ConfigError, match="open_rate: expected|world.forms"):
            WorldConfig(**bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"gold\.joined_rate"):
        GoldConfig(joined_rate=-0.1)
    with pytest.raises(ConfigError, match=r"writer\.ramble_attributes.*'mood'"):
        WriterConfig(ramble_attributes=("mood",))
    with pytest.raises(ConfigError, match=r"writer\.brevity_rate"):
        WriterConfig(brevity_rate=1.5)
    with pytest.raises(ConfigError, match="dev"):
        small(dev=-1)
