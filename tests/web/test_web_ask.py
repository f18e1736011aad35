"""The page "Ask": answers, the text around a place, feedback, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from ask_served import FILES, QUESTION, make_served
from served import client_of
from starlette.testclient import TestClient

from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.inscit import Ask, AskSettings
from finegrained_rlhf.inscit.asking.job import open_assistant
from finegrained_rlhf.inscit.asking.readers import QuotingReader
from finegrained_rlhf.inscit.asking.records import AnswerSentence, DocumentAnswer, Searched
from finegrained_rlhf.web import application
from finegrained_rlhf.web.application import Settings
from finegrained_rlhf.web.ask import desk
from finegrained_rlhf.web.ask.routes import BAD, FEEDBACK, _changed
from finegrained_rlhf.web.serve import Serve

INDEX, JSON = "ask/docs", {"accept": "application/json"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_served(tmp_path_factory.mktemp("asked"))


@pytest.fixture
def client(directory: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.chdir(directory)  # where no encoder is
    return client_of(directory)


def test_the_page_lists_indexes_and_an_empty_directory_says_how_to_make_one(client: TestClient, tmp_path: Path) -> None:
    page = client.get("/ask").text
    assert f'<option selected value="{INDEX}">{INDEX}</option>' in page and ">Ask</a>" in page
    assert "finegrained ask docs=FOLDER" in client_of(tmp_path).get("/ask").text


def test_a_conversation_with_its_places(client: TestClient) -> None:
    first = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}).json()
    (place,) = first["citations"]
    assert first["type"] == "answer" and FILES["museum.md"][place["start"] : place["end"]] == place["text"]
    assert first["looked"][0]["text"] in FILES["museum.md"]
    asked = {"index": INDEX, "question": "Who is its director?", "session": first["session"]}
    second = client.post("/ask/answers", json=asked).json()
    assert second["turn"] == 1 and second["citations"][0]["text"] == "Its director is Jonas Reed."
    read = client.get("/ask/source", params={"index": INDEX, "file": "museum.md", "start": 5, "end": 9}).json()
    assert (read["first"], read["text"], read["characters"]) == (0, FILES["museum.md"], len(FILES["museum.md"]))


def test_it_answers_as_the_command_was_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Settings] = []

    def kept(settings: Settings) -> None:
        told.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(application, "create_app", kept)
    with pytest.raises(KeyboardInterrupt):
        Serve(str(directory), ask=AskSettings(encoder="none", threshold=1.0)).run()
    client = client_of(directory, answering=told[0].answering)
    answer = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}).json()
    assert answer["type"] == "not in these documents" and answer["searched"]["threshold"] == 1.0
    client = client_of(directory, answering=AskSettings(encoder=str(directory / "gone")))
    gone = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}, headers=JSON)
    assert gone.status_code == 422 and "gone" in gone.json()["error"]


def test_what_people_say_is_a_feedback_file(client: TestClient, directory: Path) -> None:
    given = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}).json()
    said = {"session": given["session"], "turn": 0}
    assert client.post("/ask/feedback", json={**said, "verdict": "up"}).json() == {"file": FEEDBACK, "marks": 0}
    mark = {"verdict": "mark", "start": 0, "end": 5, "type": "Unverifiable", "explanation": " no "}
    assert client.post("/ask/feedback", json={**said, **mark}).json()["marks"] == 1
    assert client.post("/ask/feedback", json={**said, "verdict": "down"}).json()["marks"] == 2
    client.post("/ask/feedback", json={**said, "verdict": "edit", "text": "It opened in 1931."})
    (record,) = read_feedback(directory / FEEDBACK)
    assert record.question == QUESTION and record.predictions == (given["answer"],) and record.passages
    feedback = record.feedback
    assert [(one.start, one.end, one.error_type) for one in feedback.errors][0] == (0, 5, "Unverifiable")
    assert feedback.errors[1].end == len(given["answer"]) and feedback.corrected_prediction == "It opened in 1931."


def test_an_edit_marks_the_sentences_that_it_does_not_keep(client: TestClient, directory: Path) -> None:
    """A changed answer that marked nothing would teach that all of it was right."""
    (directory / FEEDBACK).unlink(missing_ok=True)
    client.app.state.desk.assistant(INDEX).reader = QuotingReader(near=100.0)  # type: ignore[attr-defined]
    given = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}).json()
    first, second = (one["text"] for one in given["sentences"])
    said = {"session": given["session"], "turn": 0, "verdict": "edit"}
    assert client.post("/ask/feedback", json={**said, "text": given["answer"]}).json()["marks"] == 0
    kept = client.post("/ask/feedback", json={**said, "text": f"Yes.  {first}"}).json()
    assert kept["marks"] == 1
    (record,) = read_feedback(directory / FEEDBACK)
    (mark,) = record.feedback.errors
    assert given["answer"][mark.start : mark.end] == second and mark.error_type == BAD
    assert mark.explanation == f"replaced by: Yes.  {first}"
    assert record.feedback.corrected_prediction == f"Yes.  {first}"


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("answers", {"index": "../docs", "question": "x"}, "no index of documents"),
        ("answers", {"index": INDEX, "question": " "}, "expected some text"),
        ("answers", {"index": INDEX, "question": "x" * 3000}, "at most 2000"),
        ("feedback", {"session": "gone", "turn": 0, "verdict": "up"}, "conversation is over"),
        ("feedback", {"session": "gone", "turn": 0, "verdict": "sideways"}, "verdict"),
    ],
)
def test_what_is_refused_is_one_line(client: TestClient, path: str, body: dict[str, object], problem: str) -> None:
    answer = client.post(f"/ask/{path}", json=body, headers=JSON)
    assert answer.status_code == 422 and problem in answer.json()["error"] and "\n" not in answer.json()["error"]


@pytest.mark.parametrize("file", ["../outputs/ask/docs/ask.json", "/etc/hostname", "gone.md"])
def test_only_documents_of_the_index_are_read(client: TestClient, file: str) -> None:
    answer = client.get("/ask/source", params={"index": INDEX, "file": file}, headers=JSON)
    assert answer.status_code == 422 and "is not in the index" in answer.json()["error"]


def answered(client: TestClient, session: str | None = None, index: str = INDEX) -> dict[str, object]:
    asked = {"index": index, "question": QUESTION, "session": session}
    answer: dict[str, object] = client.post("/ask/answers", json=asked).json()
    return answer


def test_an_index_that_was_updated_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page answered from the old one for ever, and the places that it cited were gone."""
    monkeypatch.chdir(tmp_path)
    client = client_of(make_served(tmp_path))
    first = answered(client)
    assert answered(client, str(first["session"]))["session"] == first["session"]
    (tmp_path / "docs/museum.md").write_text("# Museum of Orsk\n\nAs we know now, the museum opened in 1929.\n")
    made, _ = open_assistant(Ask(docs="docs", index="outputs/ask/docs", encoder="none", model="none"))
    second = answered(client, str(first["session"]))
    assert second["citations"] == made.ask(QUESTION).row()["citations"] != first["citations"]
    assert second["session"] != first["session"] and second["turn"] == 0
    read = client.get("/ask/source", params={"index": INDEX, "file": "museum.md"}).json()
    assert "1929" in read["text"]


def test_no_conversation_keeps_an_assistant_that_was_closed(
    directory: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "_OPEN", 1)
    shutil.copytree(directory / INDEX, directory / "ask/other", dirs_exist_ok=True)
    first, _ = answered(client), answered(client, index="ask/other")
    said = {"session": first["session"], "turn": 0, "verdict": "up"}
    answer = client.post("/ask/feedback", json=said, headers=JSON)
    assert answer.status_code == 422 and "conversation is over" in answer.json()["error"]
    shutil.rmtree(directory / "ask/other")


def test_an_answer_has_the_number_of_its_own_turn(client: TestClient) -> None:
    """Others may ask in the same conversation before it is sent."""
    first = answered(client)
    session = client.app.state.desk.known_session(first["session"])  # type: ignore[attr-defined]
    ask = session.ask

    def twice(question: str) -> DocumentAnswer:
        answer: DocumentAnswer = ask(question)
        ask("Who is its director?")
        return answer

    session.ask = twice
    assert answered(client, str(first["session"]))["turn"] == 1


def test_a_record_that_names_a_path_or_nothing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client = client_of(make_served(tmp_path))
    record = tmp_path / "outputs/ask/docs/ask.json"
    for change in ({"fingerprint": "../../../elsewhere/p"}, {"fingerprint": None}):
        record.write_text(json.dumps({**json.loads(record.read_text()), **change}))
        answer = client.post("/ask/answers", json={"index": INDEX, "question": QUESTION}, headers=JSON)
        assert answer.status_code == 422 and "16 hexadecimal digits" in answer.json()["error"]


@pytest.mark.parametrize(
    ("correction", "places"),
    [
        ("Fee: 12 It rains.", [(0, 6)]),
        ("It rains. Fee: 1", []),
        ("Fee: 1 It rains", [(7, 16)]),
        ("Fee:  1\nIt rains.", []),
    ],
)
def test_what_a_correction_changed_is_told_word_by_word(correction: str, places: list[tuple[int, int]]) -> None:
    sentences = tuple(AnswerSentence(text, (), 0.0, False) for text in ("Fee: 1", "It rains."))
    assert _changed(DocumentAnswer("?", "answer", sentences, (), Searched("?", (), (), 0.0)), correction) == places
