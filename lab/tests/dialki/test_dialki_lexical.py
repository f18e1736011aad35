"""Lexical baselines of DIALKI: values by hand."""

from __future__ import annotations

import math

import pytest

from finegrained_lab.experiments.dialki.lexical import bm25, lexical_passage, lexical_span, snowball
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config

# The definition of the SQuAD v2 evaluation, written from its description: normalised answers, their tokens in common.


def test_bm25_by_hand() -> None:
    documents = ["red mill", "red red inn old"]
    # mean length 3; `red` is in both (idf ln 1.2), `inn` in one (idf ln 2).
    shared, rare = math.log(1 + 0.5 / 2.5), math.log(1 + 1.5 / 1.5)
    first = shared / (1 + 1.0 * (1 - 0.5 + 0.5 * 2 / 3))
    norm = 1.0 * (1 - 0.5 + 0.5 * 4 / 3)
    second = shared * 2 / (2 + norm) + rare * 1 / (1 + norm)
    constants = Bm25Config(k1=1.0, b=0.5)
    assert bm25("red inn gone", documents, constants) == pytest.approx([first, second], rel=1e-6)
    assert bm25("red red", documents)[0] == pytest.approx(2 * bm25("red", documents)[0])
    assert bm25("gone", documents) == [0.0, 0.0]


def test_bm25_reads_words_as_retrieval_does() -> None:
    documents = ["It opened at nine.", "Opening hours of the mill.", "The inn."]
    stems = bm25("Does the mill open?", documents)
    assert stems[1] > stems[0] > 0 and stems[2] == 0  # stems of "open"; "the" is no word
    plain = bm25("Does the mill open?", documents, Bm25Config(stemmer="none", stop_words="none"))
    assert plain[0] == 0 and plain[2] > 0


def test_snowball_leaves_out_the_words_of_every_question() -> None:
    documents = ["What do they have for you?", "Breakfast was generously served."]
    asked = "What do you have, is breakfast generous?"
    assert bm25(asked, documents)[0] > bm25(asked, documents)[1] > 0  # retrieval's 33 keep "what", "do", "you", "have"
    found = bm25(asked, documents, snowball())
    assert found[0] == 0 and found[1] > 0
    assert len(set(snowball().stop_words)) == 179 and snowball().stemmer == "english"


def test_lexical_baselines_find_the_words() -> None:
    passages = (
        Passage("a", "Red Mill", ("It is old.", "It opens at nine.")),
        Passage("b", "Inn", ("Its color is red.",)),
    )
    said = (Turn("user", "When does the mill open?"), Turn("agent", "At nine."), Turn("user", "What is its color?"))
    dialogue = DialogueExample("x", said, passages)
    assert lexical_passage(dialogue) == 1 and lexical_span(dialogue) == Knowledge(1, 0, 0)
    assert lexical_passage(DialogueExample("x", said[:1], passages)) == 0
    assert lexical_span(DialogueExample("x", (Turn("user", "At nine?"),), passages)) == Knowledge(0, 1, 1)
    assert lexical_passage(dialogue, turns=None) == 0
