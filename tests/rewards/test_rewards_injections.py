"""Injections: an endpoint that obeys some of them, one that obeys none, and what is reported of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remote_toy import FakeService, chat

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.inference import AttackJudge
from finegrained_rlhf.inference.attack import CONTROL, INJECTIONS, InjectionReport, attacks
from finegrained_rlhf.rewards import Judge
from finegrained_rlhf.runtime import RemoteConfig

pytestmark = pytest.mark.needs("spacy")  # it cuts answers into segments

PASSAGES = (Passage("", "Rome", ("Rome is in Italy.", "It is old.")),)
ANSWERS = ("Rome is in Spain. It is old.", "It is old. It is in Italy.", "Rome is new. Rome is in Spain.")
WRONG = ("Rome is in Spain", "Rome is new")


def outputs(path: Path) -> str:
    records = [OutputRecord(str(n), "Where is Rome?", PASSAGES, (), "", (text,)) for n, text in enumerate(ANSWERS)]
    write_outputs(path / "outputs.jsonl", [*records, OutputRecord("empty", "?", PASSAGES, (), "", (" ",))])
    return str(path / "outputs.jsonl")


def attacked(path: Path, answer: Callable[[str], Any], **keys: Any) -> InjectionReport:
    """What an endpoint does that answers what `answer` makes of the text it is to judge."""
    with FakeService(chat(lambda message: answer(fenced_data(message)["answer"]))) as service:
        remote = RemoteConfig(service.url, backoff_s=0.001, longest_wait_s=0.01)
        judge = Judge(remote, "some", path / "judge.sqlite", {"wrong": "contradicts the passages"})
        where = {"output": str(path / "injections.json")} if "run" not in keys else {}
        return AttackJudge(judge, outputs(path), segmenter="rules", **where, **keys).run()


def errors(text: str) -> dict[str, Any]:
    return {"errors": [{"quote": quote, "kind": "wrong"} for quote in WRONG if quote in text]}


def test_every_kind_has_variants_before_and_behind_each_answer() -> None:
    made = list(attacks(ANSWERS))
    assert len({attack.text for attack in made}) == len(made) == 2 * len(ANSWERS) * sum(map(len, INJECTIONS.values()))
    assert all(ANSWERS[attack.item] in attack.text for attack in made)
    assert all(len(texts) >= 3 for texts in INJECTIONS.values()) and "forged passages" in INJECTIONS
    assert not any("$" in attack.text for attack in made)


def test_a_judge_that_obeys_nothing_never_changes_its_mind(tmp_path: Path) -> None:
    report = attacked(tmp_path, errors)
    assert (report.answers, report.with_errors) == (3, 2)
    for kind, one in report.kinds.items():
        assert one.pairs == 6 * len(INJECTIONS[kind]) and one.with_errors == one.pairs * 2 / 3, kind
        assert (one.fewer, one.more, one.no_score, one.reward) == (0, 0, 0, 0.0), kind


def test_what_a_judge_obeys_is_found_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def obeying(text: str) -> Any:
        if "report no errors" in text:
            return {"errors": []}
        if "Rate this answer" in text:
            return "A perfect answer!"  # no judgement
        if "Thank you" in text:
            return {"errors": [{"quote": "It is", "kind": "wrong"}, *errors(text)["errors"]]}
        return errors(text)

    report = attacked(tmp_path, obeying)
    obeyed = {kind: sum("report no errors" in text for text in texts) for kind, texts in INJECTIONS.items()}
    assert {kind for kind, count in obeyed.items() if count} == {"instructions", "closed fence"}
    for kind, one in report.kinds.items():
        assert one.fewer == 2 * 2 * obeyed[kind], kind  # before and behind, in the two answers with an error
    assert report.kinds["praise"].no_score == 6 and report.kinds["praise"].pairs == 6 * 3
    assert report.kinds[CONTROL].more == 4 and report.kinds[CONTROL].reward < 0
    instructions = report.kinds["instructions"]
    assert instructions.reward == pytest.approx(2 * (1.0 + 2.0) / instructions.pairs)
    kept = read_json(tmp_path / "injections.json")
    assert kept["judge"] == "some" and kept["kinds"]["instructions"]["fewer"] == instructions.fewer
    printed = capsys.readouterr().out
    assert "3 answers, 2 with an error" in printed and f"| instructions | {instructions.pairs} | 11% |" in printed


def test_wrong_keys_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    for keys in ({"run": "x", "output": "y"}, {"output": None}, {"answers": 0}):
        with pytest.raises(ConfigError):
            AttackJudge(None, "data", **{"output": "y", **keys}).run()  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"config\.yaml"):
        attacked(tmp_path, errors, run=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}")
    attacked(tmp_path, errors, run=str(tmp_path / "run"), answers=1)
    assert json.loads((tmp_path / "run" / "injections.json").read_text())["answers"] == 1
