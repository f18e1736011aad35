"""Changes whose effect is known: made only where it is certain, and what they say of a right and of a wrong reward."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.rewards.stress import BuiltIn, Change, Expectation, StressRecord
from finegrained_rlhf.rewards.stress.changes import run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN, FILLERS, other_numbers, other_quotes

SONG = StressRecord(
    "song",
    "Who wrote the song Red River, and when?",
    (
        (
            "Red River",
            "Red River\n\nRed River is a song by the band Blue Hats.",
            "It was written by Anna Lind in 1984 for 12,500 dollars.",
            "The video was shot in Oslo by a crew of students.",
            "A choir of farmers sang its chorus on the radio.",
        ),
    ),
    "Red River was written by Anna Lind in 1984. Blue Hats paid 12,500 dollars for it.",
    ("Red River was written by Anna Lind in 1984. Its cover shows three horses.",),
)
LAKE = StressRecord(
    "lake",
    "How deep is Lake Vasa?",
    (("Lake Vasa", "Lake Vasa is 93 metres deep.", "Fishermen from Port Ulm visit its northern shore each spring."),),
    "Lake Vasa is 93 metres deep.",
)
CITY = StressRecord(
    "city",
    "Where was the mayor Karl Ott born?",
    (("Karl Ott", "Karl Ott was born in Linz.", "Maria Weiss and Paul Kern opposed his first budget."),),
    "Karl Ott was born in Linz.",
)
RECORDS = (SONG, LAKE, CITY)
MAKERS = {maker.name: maker for maker in BUILT_IN}


def made(name: str, records: Sequence[StressRecord] = RECORDS, **keys: int) -> list[Change]:
    return run_changes(records, [MAKERS[name]], **keys)


def of(record: str, changes: Sequence[Change]) -> list[Change]:
    return [change for change in changes if change.record == record]


@pytest.mark.parametrize("kind", ["name", "number", "date"])
def test_a_fact_is_swapped_within_its_type_for_one_that_nobody_mentions(kind: str) -> None:
    changes = [change for seed in range(5) for change in made(f"swap_{kind}", seed=seed)]
    assert changes
    for change in changes:
        record = next(one for one in RECORDS if one.id == change.record)
        (expected,) = change.expectations
        assert (expected.role, expected.direction) == ("factuality", "fall")
        assert expected.before and expected.after
        was, now = change.base[slice(*expected.before)], change.changed[slice(*expected.after)]
        assert change.changed == change.base.replace(was, now, 1)
        passages = " ".join(" ".join(passage) for passage in record.passages)
        gone, new = set(was.split()) - set(now.split()), set(now.split()) - set(was.split())
        assert gone and new
        assert all(word.strip(".,") in passages for word in gone)
        assert not any(word.strip(".,") in passages + record.question for word in new)
        assert any(word.strip(".").replace(",", "").isdigit() for word in new) == (kind != "name")


def test_an_answer_of_a_model_is_swapped_only_where_all_its_words_stand_in_the_passages() -> None:
    swapped = [change for seed in range(8) for change in of("song", made("swap_date", seed=seed))]
    assert {change.base_source for change in swapped} == {"gold", "answer"}
    unknown = replace(SONG, answers=("Red River was composed by Anna Lind in 1984.",))
    assert {change.base_source for change in made("swap_date", [unknown, LAKE])} == {"gold"}


def test_a_foreign_sentence_shares_no_word_with_the_question_and_stands_behind_a_needed_one() -> None:
    for change in made("foreign_sentence"):
        (expected,) = change.expectations
        assert expected.before and expected.after
        needed, foreign = change.base[slice(*expected.before)], change.changed[slice(*expected.after)]
        assert needed in change.base and foreign not in change.base
        assert any(foreign in passage for r in RECORDS if r.id != change.record for p in r.passages for passage in p)
        assert "horses" not in needed, "what the gold answer does not say is not known to be relevant"


def test_only_what_the_answer_says_once_and_the_gold_answer_and_passages_need_is_taken_out() -> None:
    gold, answer = of("song", made("missing_fact"))
    assert gold.changed in ("Red River was written by Anna Lind in 1984.", "Blue Hats paid 12,500 dollars for it.")
    assert answer.changed == "Its cover shows three horses."
    twice = replace(SONG, gold="Anna Lind wrote it in 1984. In 1984 Anna Lind wrote it.", answers=())
    assert not made("missing_fact", [twice, LAKE])
    elsewhere = replace(SONG, gold="It was written by Bo Ek. The video was shot in Rome.", answers=())
    assert not made("missing_fact", [elsewhere, LAKE]), "what no passage says is not needed"


def test_a_copied_window_lacks_what_the_gold_answer_says() -> None:
    texts = {change.changed for seed in range(10) for change in of("song", made("copied_window", seed=seed))}
    assert texts and not any("Lind" in text or "12,500" in text or "Blue Hats" in text for text in texts)
    assert any("choir" in text for text in texts)


def test_what_is_no_answer_costs_completeness_and_the_total_of_a_gold_answer_alone() -> None:
    for name, text in (("empty", ""), ("restated_question", SONG.question)):
        gold, answer = of("song", made(name))
        assert gold.changed == answer.changed == text
        assert [one.role for one in gold.expectations] == ["completeness", "total"]
        assert [one.role for one in answer.expectations] == ["completeness"]


def test_padding_and_a_cut_must_not_rise() -> None:
    pads = made("filler") + made("name_list") + made("cut_sentence")
    assert {change.family for change in pads} == {"pad", "cut"}
    assert all(one.direction == "not_rise" for change in pads for one in change.expectations)
    assert all(change.changed.endswith(FILLERS) for change in made("filler"))
    for change in made("cut_sentence"):
        assert change.base.startswith(change.changed) and not change.changed.endswith(".")
    (names,) = (change for change in of("city", made("name_list")) if change.base_source == "gold")
    assert "Ott" not in names.changed[len(CITY.gold) :] and "Linz" not in names.changed[len(CITY.gold) :]


def test_sentences_change_places_only_where_nothing_leans_on_what_stands_before() -> None:
    free = replace(CITY, gold="Karl Ott was born in Linz. Paul Kern was born in Graz.")
    (change,) = made("sentence_order", [free])
    assert change.changed == "Paul Kern was born in Graz. Karl Ott was born in Linz."
    for second in ("He met Paul Kern.", "However, Paul Kern was born in Graz.", "The budget was opposed."):
        assert not made("sentence_order", [replace(CITY, gold=f"Karl Ott was born in Linz. {second}")])
    following = "Karl Ott was born in Linz. Paul Kern was born in Graz. He died there."
    assert not made("sentence_order", [replace(CITY, gold=following)])


def test_the_same_words_are_spelt_otherwise() -> None:
    assert other_quotes('"Red", he\'d say') == "“Red”, he’d say"
    assert other_quotes("“Red”, he’d say") == '"Red", he\'d say'
    assert other_numbers("On May 3, 1984, three of 12,500") == "On 3 May 1984, 3 of 12500"


def test_draws_depend_on_the_seed_and_on_no_other_maker() -> None:
    alone = made("swap_name", seed=3)
    assert alone == made("swap_name", seed=3)
    assert alone == [change for change in run_changes(RECORDS, BUILT_IN, 3) if change.name == "swap_name"]
    assert len({tuple(made("filler", seed=seed)) for seed in range(6)}) > 1


ODD = (
    StressRecord("none", "Q?", (), "", ()),
    StressRecord("blank", "Q?", ((), ("t",), ("t", " \n ")), "   ", ("", "  ")),
    StressRecord("japanese", "何ですか?", (("題", "東京は日本の首都です。"),), "東京は日本の首都です。", ("東京。",)),
    StressRecord("marks", "...", (("t", ""),), "...", ("!!!", "\ud800\x00")),
    StressRecord("long", "a\n\nb", (("t", "x " * 3000),), "word", ("A" * 3000,)),
    StressRecord("twin", "Who is Élan?", (("", "Élan Ünal was born in 1990. 😀"),), "Élan Ünal was born in 1990."),
    StressRecord("twin2", "Who is Élan?", (("", "Élan Ünal was born in 1990. 😀"),), "Élan Ünal was born in 1990."),
)


def test_odd_records_give_sound_changes_or_none() -> None:
    for records in (ODD, *([record] for record in ODD)):
        assert all(change.fault(change.record) is None for change in run_changes(records, BUILT_IN, 0, answers=3))
    assert run_changes([], BUILT_IN) == []
    alone = Counter(change.name for change in run_changes([SONG], BUILT_IN))
    assert alone["swap_date"] == alone["missing_fact"] == 2 and "other_answer" not in alone
    twins = run_changes(ODD[-2:], [MAKERS["other_answer"], MAKERS["foreign_sentence"]])
    assert twins == [], "a question that is there twice is no other question"


@dataclass(frozen=True)
class Shout:
    """A family of one's own."""

    what: str = "fine"
    name: str = "shout"
    family: str = "tone"

    def __call__(
        self, record: StressRecord, answer: str, others: Sequence[StressRecord], random: random.Random
    ) -> Change | None:
        if self.what == "raises":
            raise ValueError("no")
        changed = answer if self.what == "same" else answer.upper()
        span = (0, 10_000) if self.what == "outside" else None
        direction = "jump" if self.what == "direction" else "stay"
        expected = () if self.what == "nothing" else (Expectation("relevance", direction, None, span),)  # type: ignore[arg-type]
        name = "other" if self.what == "record" else record.id
        return Change(self.name, self.family, name, answer, changed, "gold", expected)


def test_a_family_of_ones_own_is_made_beside_the_others() -> None:
    assert [change.changed for change in run_changes([CITY], [Shout()])] == [CITY.gold.upper()]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("raises", "shout failed on record 'city': ValueError: no"),
        ("same", "shout changed nothing in record 'city'"),
        ("outside", "shout names characters"),
        ("direction", "has the direction 'jump'; expected fall, not_rise, stay"),
        ("nothing", "shout expects nothing"),
        ("record", "shout made a change for record 'other' in record 'city'"),
    ],
)
def test_a_broken_family_is_one_line(what: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        run_changes([CITY], [Shout(what)])


def test_names_of_makers_are_unique() -> None:
    with pytest.raises(ConfigError, match="'filler'"):
        run_changes([CITY], [*BUILT_IN, BuiltIn("filler", "pad", lambda draft, others, rng: None)])
