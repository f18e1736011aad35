"""InscitWorld: files, splits, shares, the rules of answering, and how far words alone go."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import Stemmer

from finegrained_lab.published.inscit.data import InscitTurn, read_inscit, turns_of
from finegrained_lab.published.inscit.pages import MakeCorpus
from finegrained_lab.worlds.inscit import lexicon
from finegrained_lab.worlds.inscit.annotators import AnnotatorHabits, answer
from finegrained_lab.worlds.inscit.articles import ArticleConfig, WorldArticle, WorldPassage, draw_articles
from finegrained_lab.worlds.inscit.conversations import ConversationConfig
from finegrained_lab.worlds.inscit.grammar import Statement
from finegrained_lab.worlds.inscit.make import PAGES, PASSAGES, MakeInscitWorld
from finegrained_lab.worlds.inscit.questions import InscitQuestion
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.inscit.conversation import (
    CLARIFICATION,
    DIRECT,
    NO_INFORMATION,
    NOTHING,
    RELEVANT,
    RESPONSE_TYPES,
)
from finegrained_rlhf.models.tiny_networks import build_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config, Bm25Index

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of the default configuration with fewer conversations to train on."""
    path = tmp_path_factory.mktemp("inscit") / "world"
    MakeInscitWorld(str(path), train=250).run()
    return path


@pytest.fixture(scope="module")
def index(world: Path) -> Bm25Index:
    config = Bm25Config()
    config.build(str(world / PASSAGES), world.parent / "index")
    return config.open(world.parent / "index")


def turns_in(world: Path, split: str) -> list[InscitTurn]:
    return turns_of(read_inscit(world / f"{split}.json").conversations)


def truth_of(world: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (row["id"], number): turn
        for row in read_jsonl(world / "world.jsonl")
        for number, turn in enumerate(row["turns"], start=1)
    }


def hit_rate(index: Bm25Index, turns: Sequence[InscitTurn], queries: Sequence[str], k: int) -> float:
    found = index.search(queries, k)
    gold = [set().union(*(label.passages for label in turn.labels)) for turn in turns]
    return fmean(bool(some & {hit.id for hit in hits}) for some, hits in zip(gold, found, strict=True))


def with_gold(turns: Sequence[InscitTurn]) -> list[InscitTurn]:
    return [turn for turn in turns if any(label.evidence for label in turn.labels)]


def test_its_files_are_read_as_those_of_inscit(world: Path, tmp_path: Path) -> None:
    corpus = {row["id"]: row for row in read_jsonl(world / PASSAGES)}
    assert 2000 <= len(corpus) <= 5000
    for split in SPLITS:
        reading = read_inscit(world / f"{split}.json", corpus)
        assert not reading.unknown_keys
        for turn in turns_of(reading.conversations):
            for passage in (one for label in turn.labels for one in label.evidence):
                assert corpus[passage.id]["text"] == passage.text
                assert corpus[passage.id]["title"] == " [SEP] ".join(passage.titles)
    assert MakeCorpus(str((world / PAGES).parent), str(tmp_path)).run() == len(corpus)
    assert (tmp_path / "pages.jsonl").read_bytes() == (world / PASSAGES).read_bytes()
    assert sum(" " in name for name in corpus) == len(corpus)
    outlines = [row for name, row in corpus.items() if name.endswith(":0")]
    assert len(outlines) == 300 and all(not row["title"] and "\n- - " in row["text"] for row in outlines)


def test_it_has_the_shares_of_table_5_2(world: Path) -> None:
    turns = turns_in(world, "train")
    labels = [label for turn in turns for label in turn.labels]
    passages = {kind: [len(one.passages) for one in labels if one.response_type == kind] for kind in RESPONSE_TYPES}
    for kind, share, mean in ((DIRECT, 0.71, 1.35), (CLARIFICATION, 0.13, 2.9), (RELEVANT, 0.13, 1.45)):
        assert len(passages[kind]) / len(labels) == pytest.approx(share, abs=0.04)
        assert fmean(passages[kind]) == pytest.approx(mean, abs=0.3)
    assert 0.01 < len(passages[NOTHING]) / len(labels) < 0.05 and set(passages[NOTHING]) == {0}
    assert fmean(len(one.passages) for one in labels) == pytest.approx(1.55, abs=0.1)
    assert fmean(number > 1 for number in passages[DIRECT]) == pytest.approx(0.3, abs=0.06)
    assert min(passages[CLARIFICATION]) >= 2
    two = [turn for turn in turns if len(turn.labels) == 2]
    assert len(two) / len(turns) == pytest.approx(0.7, abs=0.05)
    differ = [turn for turn in two if turn.agreed_type is None]
    assert len(differ) / len(two) == pytest.approx(0.23, abs=0.04)
    assert fmean(turn.labels[0].passages != turn.labels[1].passages for turn in differ) > 0.7
    reuse = [
        bool({one.id for part in turn.earlier for one in part} & turn.labels[0].passages)
        for turn in turns
        if turn.number > 1
    ]
    assert 0.15 < fmean(reuse) < 0.3


def test_gold_passages_are_everywhere(world: Path) -> None:
    """No rule of places finds them: not the lead, not the article that a conversation began with, not earlier ones."""
    truth = {row["id"]: row["article"] for row in read_jsonl(world / "world.jsonl")}
    turns = with_gold(turns_in(world, "train"))
    gold = [(turn, name) for turn in turns for label in turn.labels for name in label.passages]
    numbers = Counter(name.rpartition(":")[2] for _, name in gold)
    assert max(numbers.values()) < 0.15 * len(gold)
    assert fmean(name.rpartition(":")[0] == truth[turn.conversation] for turn, name in gold) < 0.5
    assert fmean(name in {one.id for part in turn.earlier for one in part} for turn, name in gold) < 0.3


def test_no_word_of_a_question_tells_the_type(world: Path) -> None:
    """A word says no more of the type than that it is a direct answer."""
    by_word: dict[str, Counter[str]] = {}
    for turn in turns_in(world, "train"):
        for word in set(re.findall(r"\w+", turn.context[-1].lower())):
            by_word.setdefault(word, Counter()).update(label.response_type for label in turn.labels)
    often = {word: counts for word, counts in by_word.items() if counts.total() >= 50}
    assert len(often) > 60 and all(counts.most_common(1)[0][0] == DIRECT for counts in often.values())


def test_the_last_turn_alone_finds_little_and_a_rewrite_finds_it(world: Path, index: Bm25Index) -> None:
    truth = truth_of(world)
    for split in ("dev", "test"):
        turns = with_gold(turns_in(world, split))
        last = [turn.context[-1] for turn in turns]
        assert hit_rate(index, turns, last, 1) <= 0.5 and hit_rate(index, turns, last, 20) < 0.6
        assert hit_rate(index, turns, [" ".join(turn.context) for turn in turns], 20) < 0.7
        assert hit_rate(index, turns, [truth[turn.key]["standalone"] for turn in turns], 1) > 0.8


def test_splits_share_no_entity(world: Path) -> None:
    titles: dict[str, set[str]] = {}
    for split in SPLITS:
        found = {
            passage.id.rpartition(":")[0].partition(" (")[0]
            for turn in turns_in(world, split)
            for label in turn.labels
            for passage in label.evidence
        }
        asked = {
            title.partition(" (")[0]
            for row in read_jsonl(world / "world.jsonl")
            if row["split"] == split
            for turn in row["turns"]
            for title in turn["entities"]
        }
        titles[split] = found | asked
    assert not titles["train"] & titles["dev"] and not titles["train"] & titles["test"]
    assert not titles["dev"] & titles["test"] and min(map(len, titles.values())) > 20
    words = {split: {word for title in found for word in title.split()} for split, found in titles.items()}
    assert words["dev"] | words["test"] <= words["train"]


def test_two_articles_share_a_name_and_an_answer_asks_which(world: Path) -> None:
    pages = read_json(world / PAGES)
    names = Counter(page["title"].partition(" (")[0] for page in pages)
    assert set(names.values()) == {1, 2}
    assert all((names[page["title"].partition(" (")[0]] == 2) == page["title"].endswith(")") for page in pages)
    truth = truth_of(world)
    asked = [
        label
        for turn in turns_in(world, "train")
        for label in turn.labels
        if label.response_type == CLARIFICATION and len({(row[0], row[1]) for row in truth[turn.key]["asked"]}) == 2
    ]
    assert len(asked) > 20
    for label in asked:
        assert len({name.rpartition(":")[0] for name in label.passages}) == 2 <= len(label.passages)


def test_a_seed_is_a_world(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        MakeInscitWorld(str(tmp_path / name), seed, train=6, dev=2, test=0, articles=ArticleConfig(40)).run()
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    listed = read_json(tmp_path / "a" / "manifest.json")["files"]
    assert {str(file) for file in files} == {*listed, "manifest.json"}
    assert set(listed) == {"train.json", "dev.json", "truth.json", "world.jsonl", "corpus.txt", PAGES, PASSAGES}
    for file in files:
        same = (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        other = (tmp_path / "a" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()
        assert same and other == (file.name == "corpus.txt")


def test_a_split_does_not_depend_on_the_others(tmp_path: Path) -> None:
    config = ArticleConfig(60)
    few, more = (MakeInscitWorld("unused", train=n, dev=3, test=0, articles=config).draw() for n in (2, 9))
    assert [one.record for one in few["dev"]] == [one.record for one in more["dev"]]
    assert [one.record for one in few["train"]] == [one.record for one in more["train"][:2]] and not few["test"]


def test_a_conversation_goes_on_with_one_of_its_labels(world: Path) -> None:
    truth = {row["id"]: row["turns"] for row in read_jsonl(world / "world.jsonl")}
    for conversation in read_inscit(world / "dev.json").conversations:
        for number, (turn, after) in enumerate(zip(conversation.turns, conversation.turns[1:], strict=False)):
            continued = truth[conversation.id][number]["continued"]
            assert continued in conversation.continued_by(number)
            assert after.earlier[-1] == turn.labels[continued].evidence


# A small article made by hand, for the rules.


def article(kind: str, facts: Sequence[tuple[str, str, str]]) -> WorldArticle:
    found = [Statement(kind, "Arden Ulver", *fact) for fact in facts]
    passages = tuple(WorldPassage(f"Arden Ulver ({kind}):{i + 2}", (), "…", (one,)) for i, one in enumerate(found))
    empty = tuple(WorldPassage(f"Arden Ulver ({kind}):{i}", (), "…", ()) for i in range(2))
    return WorldArticle(f"Arden Ulver ({kind})", kind, "Arden Ulver", "train", (*empty, *passages))


TOWN = article(
    "town",
    [
        ("owner", "early", "old tailor"),
        ("color", "early", "new red"),
        ("color", "late", "old red"),
        ("tree", "early", "old oak"),
        ("tree", "late", "new oak"),
        ("tree", "modern", "new elm"),
    ],
)
SHIP = article("ship", [("owner", "late", "new lawyer")])
RULE = AnnotatorHabits(**dict.fromkeys(AnnotatorHabits.__dataclass_fields__, 0.0))


FACT = "The {} of the {} Arden Ulver in the {} period was the {}."


@pytest.mark.parametrize(
    ("articles", "attribute", "period", "case", "kind", "text", "evidence"),
    [
        ([TOWN], "owner", "", "one", DIRECT, FACT.format("owner", "town", "early", "old tailor"), 1),
        ([TOWN, SHIP], "owner", "late", "one", DIRECT, FACT.format("owner", "ship", "late", "new lawyer"), 1),
        (
            [TOWN, SHIP],
            "owner",
            "",
            "many",
            CLARIFICATION,
            "Do you mean the owner of the town Arden Ulver in the early period "
            "or of the ship Arden Ulver in the late period?",
            2,
        ),
        (
            [TOWN],
            "color",
            "",
            "two",
            DIRECT,
            f"{FACT.format('color', 'town', 'early', 'new red')} {FACT.format('color', 'town', 'late', 'old red')}",
            2,
        ),
        (
            [TOWN],
            "tree",
            "",
            "many",
            CLARIFICATION,
            "Do you mean the tree of the town Arden Ulver in the early, late or modern period?",
            3,
        ),
        ([TOWN], "tree", "late", "one", DIRECT, FACT.format("tree", "town", "late", "new oak"), 1),
        (
            [TOWN],
            "owner",
            "late",
            "relaxable",
            RELEVANT,
            "I found nothing about the late period, "
            "but the owner of the town Arden Ulver in the early period was the old tailor.",
            1,
        ),
        ([SHIP], "tree", "", "nothing", NOTHING, NO_INFORMATION, 0),
    ],
)
def test_the_rule_of_each_case(
    articles: list[WorldArticle], attribute: str, period: str, case: str, kind: str, text: str, evidence: int
) -> None:
    question = InscitQuestion("named", "…", tuple(articles), attribute, period)
    said = answer(question, random.Random(0), RULE)
    assert (question.case, said.response_type, said.text, len(said.evidence)) == (case, kind, text, evidence)


@pytest.mark.parametrize(
    ("habit", "question", "kind", "statements"),
    [
        ("takes_a_reading", ([TOWN], "tree", ""), DIRECT, 1),
        ("asks_about_two", ([TOWN], "color", ""), CLARIFICATION, 2),
        ("gives_one_of_two", ([TOWN], "color", ""), DIRECT, 1),
        ("adds_a_fact", ([TOWN], "color", "late"), DIRECT, 2),
        ("misses", ([TOWN], "color", "late"), RELEVANT, 1),
        ("finds_nothing", ([TOWN], "owner", "late"), NOTHING, 0),
        ("finds_related", ([SHIP], "tree", ""), RELEVANT, 1),
    ],
)
def test_each_habit(habit: str, question: tuple[Any, str, str], kind: str, statements: int) -> None:
    articles, attribute, period = question
    asked = InscitQuestion("named", "…", tuple(articles), attribute, period)
    said = answer(asked, random.Random(0), replace(RULE, **{habit: 1.0}))
    assert (said.response_type, len(said.statements)) == (kind, statements)


def test_users_and_passages_have_different_words() -> None:
    stem = Stemmer.Stemmer("porter").stemWord
    users = [word for words in lexicon.USER_WORDS.values() for word in words]
    users += [*lexicon.ENTITY_KINDS.values(), *lexicon.PERIODS.values()]
    rng, config = random.Random(0), ArticleConfig(60)
    texts = [one.text for found in draw_articles(rng, config) for one in found.passages]
    texts += [*lexicon.FIRST_NAMES, *lexicon.LAST_NAMES]
    passages = {stem(word.lower()) for text in texts for word in re.findall(r"\w+", text)}
    assert len({stem(word) for word in users}) == len(users) and not passages & {stem(word) for word in users}
    things = [value.split()[1] for values in lexicon.VALUES.values() for value in values]
    assert all(count == 5 for count in Counter(things).values())


def test_its_vocabulary_has_every_word_of_its_files(world: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(MakeInscitWorld("unused").vocabulary())
    texts = [f"{row['title']} {row['text']}" for row in read_jsonl(world / PASSAGES)]
    texts += [
        text for turn in turns_in(world, "dev") for text in (*turn.context, *(one.response for one in turn.labels))
    ]
    unknown = tokenizer.unk_token_id
    assert not [text for text in texts if unknown in tokenizer(text.replace("[SEP]", "")).input_ids][:1]
    assert len(tokenizer) < 600


def test_more_articles_than_the_first_words_can_name_use_more_words() -> None:
    few, many = (
        [one.name for one in draw_articles(random.Random(1), ArticleConfig(count, sections=(1, 1)))]
        for count in (60, 900)
    )
    first, last = (set(words[: lexicon.FEWEST_NAME_WORDS]) for words in (lexicon.FIRST_NAMES, lexicon.LAST_NAMES))
    assert {name.split()[0] for name in few} <= first and {name.split()[1] for name in few} <= last
    assert len({name.split()[0] for name in many}) == len({name.split()[1] for name in many}) == 30
    tokenizer = build_tokenizer(MakeInscitWorld("unused").vocabulary())
    names = " ".join([*lexicon.FIRST_NAMES, *lexicon.LAST_NAMES])
    assert tokenizer.unk_token_id not in tokenizer(names).input_ids
    assert len({*lexicon.FIRST_NAMES, *lexicon.LAST_NAMES}) == len(names.split())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ArticleConfig(5), "articles.count"),
        (lambda: ArticleConfig(sections=(3, 2)), "articles.sections"),
        (lambda: ArticleConfig(values=(1, 0, 0)), "articles.values"),
        (lambda: ArticleConfig(fillers=2), "fillers: expected"),
        (lambda: ArticleConfig(lead_facts=-1), "lead_facts: expected"),
        (lambda: ConversationConfig(turns=(0, 2)), "conversations.turns"),
        (lambda: ConversationConfig(cases={"one": 1.0}), "conversations.cases"),
        (lambda: ConversationConfig(picks=1.5), "picks: expected"),
        (lambda: AnnotatorHabits(misses=-1), "habits.misses"),
        (lambda: AnnotatorHabits(asks_about_two=0.7, gives_one_of_two=0.7), "habits"),
        (lambda: MakeInscitWorld("unused", train=-1), "train"),
    ],
)
def test_settings_that_make_no_world_are_refused(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


def test_an_article_without_facts_has_no_topics() -> None:
    rare = ArticleConfig(count=60, sections=(1, 1), values=(30, 1, 0, 0, 0))
    bare = next(one for one in draw_articles(random.Random(0), rare) if not one.facts)
    question = InscitQuestion("topics", "What can you tell me about it?", (bare,), lexicon.TOPICS)
    assert question.case == "nothing"
    assert answer(question, random.Random(0), AnnotatorHabits()).response_type == NOTHING
