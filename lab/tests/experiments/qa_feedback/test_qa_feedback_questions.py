"""Who sees which questions: held-out ones are nowhere else, the two halves of the feedback share none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from feedback_samples import LAKE, record

from finegrained_lab.experiments.qa_feedback import SplitQuestions
from finegrained_lab.experiments.qa_feedback.questions import leading_sentences, shortened_context
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_examples, read_feedback, write_examples, write_feedback
from finegrained_rlhf.feedback.records import QAExample

ANSWER = "It is wide. It is cold in all the seasons of the year. Nobody swims."


def example(number: int) -> QAExample:
    text = f"question: What is lake {number} like? context: wikipage: The lake text: …"
    return QAExample(f"p{number}", f"What is lake {number} like?", text, (ANSWER,), (LAKE,))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Forty questions with feedback, in other white space and case; three more without."""
    records = [
        replace(record("It is cold.", name=f"r{i}"), question=f"what is  LAKE {i} like?") for i in reversed(range(40))
    ]
    write_feedback(tmp_path / "feedback.json", records)
    write_examples(tmp_path / "prompts.json", [example(i) for i in range(43)])
    return str(tmp_path / "prompts.json"), str(tmp_path / "feedback.json")


def asked(path: Path) -> set[str]:
    read = read_feedback if path.name in ("optimised.json", "judge.json") else read_examples
    return {" ".join(item.question.lower().split()) for item in read(path)}  # type: ignore[attr-defined]


def test_no_question_is_on_two_sides(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "split"
    counts = SplitQuestions(*files, str(out), held_out=2).run()
    assert counts == read_json(out / "split.json") == {
        "train": 32, "dev": 3, "test": 8, "optimised": 16, "judge": 16
    }  # fmt: skip
    train, dev, test, optimised, judge = (asked(out / f"{name}.json") for name in counts)
    assert not test & (train | dev | optimised | judge) and not optimised & judge and not train & dev
    assert optimised | judge | test == {f"what is lake {i} like?" for i in range(40)}
    assert {f"what is lake {i} like?" for i in (40, 41, 42)} <= train
    assert {row.references for row in read_examples(out / "train.json")} == {(ANSWER,)}


def test_each_fold_is_held_out_once(files: tuple[str, str], tmp_path: Path) -> None:
    held_out = []
    for fold in range(5):
        SplitQuestions(*files, str(tmp_path / f"{fold}"), held_out=fold).run()
        held_out += sorted(asked(tmp_path / f"{fold}" / "test.json"))
    assert len(held_out) == len(set(held_out)) == 40


def test_prompts_and_answers_are_shortened_where_they_are_trained_on(files: tuple[str, str], tmp_path: Path) -> None:
    SplitQuestions(*files, str(tmp_path / "out"), context_words=10, answer_words=5).run()
    (short, *_), (held_out, *_) = (read_examples(tmp_path / "out" / f"{name}.json") for name in ("train", "test"))
    number = short.question.split()[3]
    assert (
        short.text == f"question: What is lake {number} like? context: Its water stays cold all the year round. answer:"
    )
    assert short.references == ("It is wide.",) and held_out.references == (ANSWER,)
    assert short.passages[0].text == held_out.passages[0].text == LAKE.text
    assert held_out.text.endswith(" answer:") and len(held_out.text) < 100


def test_sentences_that_share_words_with_the_question_are_kept_in_order() -> None:
    passages = (
        Passage("", "Seas", ("The sea is salt.", "A whale sings.")),
        Passage("", "Whales", ("Whales are big.", "Why whales sing nobody knows.")),
    )
    item = QAExample("p", "Why do whales sing?", "x", ("y",), passages)
    assert shortened_context(item, 5) == "Why whales sing nobody knows."
    assert shortened_context(item, 13) == "| wikipage: Whales text: Whales are big. Why whales sing nobody knows."
    whole = (
        "wikipage: Seas text: The sea is salt. A whale sings. | wikipage: Whales text: Whales are big. Why whales sing"
    )
    assert shortened_context(item, 100) == f"{whole} nobody knows."


def test_leading_sentences() -> None:
    assert leading_sentences(ANSWER, 2) == "It is wide."  # the first is kept whatever its length
    assert leading_sentences(ANSWER, 13) == "It is wide. It is cold in all the seasons of the year."
    assert leading_sentences(ANSWER, 100) == ANSWER


def test_what_is_wrong_is_named_and_nothing_is_written(files: tuple[str, str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="held_out < folds"):
        SplitQuestions(*files, out, held_out=5)
    with pytest.raises(ConfigError, match="context_words: expected null or at least 1, got 0"):
        SplitQuestions(*files, out, context_words=0)
    with pytest.raises(DataError, match=r"feedback\.json: .*40 questions"):
        SplitQuestions(*files, out, folds=50).run()
    write_examples(files[0], [example(99)])
    with pytest.raises(DataError, match=r"prompts\.json: .*no prompt for dev\.json"):
        SplitQuestions(*files, out).run()
    assert not Path(out).exists()
