"""A language model of which some replies are odd ends no run; one that gives none ends it in one line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odd_replies import FORMS, NoGenerator, OddGenerator

from finegrained_lab.protocols import ModelUser, RunCoreset, RunPahf, RunPrelude, ScriptedUser
from finegrained_lab.worlds.bios import BioScript, MakeBiosWorld
from finegrained_lab.worlds.pahf import ChoiceScript, MakePahfWorld
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_jsonl
from finegrained_rlhf.core.generation.outcomes import FailureBudgetError, RefusedReplyError
from finegrained_rlhf.core.generation.wrappers import MeteredGenerator
from finegrained_rlhf.personalization.prompts import fenced_data


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worlds")
    MakePahfWorld(str(path / "pahf"), seed=7, users=2, scenes=9, drift=1.0).run()
    MakeStyleWorld(str(path / "style"), seed=7, contexts=20, foreign=0.0).run()
    MakeBiosWorld(str(path / "bios"), seed=7, conversations=1, documents=[3], scenarios=["mixed", "position"]).run()
    return path


def pahf(worlds: Path, output: Path, llm: Any, **keys: Any) -> RunPahf:
    phases = [str(worlds / f"pahf/phase{number}.jsonl") for number in (1, 2, 3, 4)]
    given: dict[str, Any] = {"user": ScriptedUser(terse=0.0), "iterations": 2, "plots": False, "progress": False}
    return RunPahf(phases, str(output), llm, **(given | keys))


def prelude(worlds: Path, output: Path, llm: Any, **keys: Any) -> RunPrelude:
    files = [str(worlds / "style/contexts.jsonl"), str(worlds / "style/preferences.json")]
    given: dict[str, Any] = {"user": StyleReader(), "plots": False, "progress": False}
    return RunPrelude(*files, str(output), llm, **(given | keys))


def coreset(worlds: Path, output: Path, llm: Any, **keys: Any) -> RunCoreset:
    return RunCoreset(str(worlds / "bios/conversations.jsonl"), str(output), llm, progress=False, **keys)


def test_two_in_a_hundred_odd_replies_end_no_phase_of_pahf(
    worlds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = OddGenerator(ChoiceScript(noise=0.0, overreach=0.0), every=50)
    found = pahf(worlds, tmp_path, llm).run()
    assert set(llm.forms) == set(FORMS)
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    assert len(rounds) == 4 * 18 * 6 and found == read_json(tmp_path / "summary.json")
    settings = found["settings"].values()
    assert sum(own["calls"] for own in settings) <= llm.calls
    assert 0 < sum(own["odd"] for own in settings) <= llm.forms.total()
    assert sum(own["unanswered"] for own in settings) == sum(bool(one["unanswered"]) for one in rounds) < 10
    assert all(own["not_learnt"] == 0 for own in settings) and found["unchanged_in_tests"]
    assert found["settings"]["both"]["phase2"]["success"][0] > 0.9
    assert " odd " in (printed := capsys.readouterr().out) and " unanswered " in printed


def test_odd_replies_end_no_agent_of_prelude(worlds: Path, tmp_path: Path) -> None:
    llm = OddGenerator(StyleWriter(slips=0.0, misreads=0.0, notices=1.0), every=10)
    found = prelude(worlds, tmp_path, llm).run()
    assert len(read_jsonl(tmp_path / "rounds.jsonl")) == 8 * 20
    assert all(own["rounds"] == 20 and own["not_learnt"] == 0 for own in found.values())
    assert sum(own["odd"] for own in found.values()) > 3
    assert found["oracle"]["cost"] == 0 < found["no_learning"]["cost"]


def test_odd_replies_end_no_conversation(worlds: Path, tmp_path: Path) -> None:
    llm = OddGenerator(BioScript(), every=20)
    found = coreset(worlds, tmp_path, llm).run()
    assert set(llm.forms) == set(FORMS)
    turns = read_jsonl(tmp_path / "turns.jsonl")
    unanswered = [one for one in turns if one["unanswered"]]
    assert 0 < len(unanswered) < 15 and all(one["answers"] == [] and one["precision"] == 0.0 for one in unanswered)
    figures = found["figures"]["mixed"]["3"]
    assert sum(own["odd"] for own in figures.values()) > 10 and figures["oracle"]["unanswered"] == 0


@pytest.mark.parametrize(
    ("make", "good", "file"),
    [(pahf, ChoiceScript(), "rounds.jsonl"), pytest.param(coreset, BioScript(), "turns.jsonl", marks=pytest.mark.slow)],
)
def test_no_reply_at_all_ends_a_run_and_is_not_kept(
    worlds: Path, tmp_path: Path, make: Any, good: Any, file: str
) -> None:
    keys = {"answers": str(tmp_path / "answers.sqlite"), "failures": 0.1}
    bad = NoGenerator()
    with pytest.raises(FailureBudgetError, match=r"^failures=0\.1: .*agent unreadable") as raised:
        make(worlds, tmp_path / "run", bad, **keys).run()
    assert "\n" not in str(raised.value)
    played = [one for one in read_jsonl(tmp_path / "run" / file) if one["unanswered"]]
    assert 0 < len(played) < 5 and not (tmp_path / "run/summary.json").exists()
    assert {one["unanswered"] for one in played} == {"agent unreadable"}

    class Good:
        identity = bad.identity

    meter = MeteredGenerator(good)
    Good.generate = staticmethod(meter.generate)  # type: ignore[attr-defined]
    found = make(worlds, tmp_path / "run", Good(), **keys).run()  # the same command, a model that answers
    whole = make(worlds, tmp_path / "other", good).run()
    assert meter.expense.calls > 0 and found == whole


class SilentUser(ScriptedUser):
    """A user whose language model refuses some answers and remarks."""

    def answer(self, scene: Any, question: str, phase: int) -> str:
        if int(scene.id[-1]) % 2:
            raise RefusedReplyError("the service will not answer")
        return super().answer(scene, question, phase)

    def correct(self, scene: Any, option: str, phase: int) -> str:
        return self.answer(scene, "", phase)


def test_a_user_who_says_nothing_is_the_outcome_of_a_round(worlds: Path, tmp_path: Path) -> None:
    llm = ChoiceScript(noise=0.0, overreach=0.0)
    keys = {"user": SilentUser(terse=0.0), "feedback": ["post", "both"], "failures": 1.0}
    found = pahf(worlds, tmp_path, llm, **keys).run()
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    silent = [one for one in rounds if one["unanswered"]]
    assert {one["unanswered"] for one in silent} == {"user refused"} and not any(one["correct"] for one in silent)
    asked = [one for one in silent if one["setting"] == "both"]
    assert asked and all(one["option"] == "" for one in asked)  # it was asked before it acted
    assert all(one["option"] and not one["given"] for one in silent if one["setting"] == "post")
    assert found["settings"]["both"]["unanswered"] == len(asked)


def test_rounds_without_a_draft_or_an_edit_have_no_cost(worlds: Path, tmp_path: Path) -> None:
    class Refuses(StyleWriter):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            if "examples" in prompt or len(prompt) % 5 == 0:
                raise RefusedReplyError("the service will not answer")
            return super().generate(prompt, schema)

    class Silent(StyleReader):
        def edit(self, context: str, preference: str, draft: str) -> str:
            if len(draft) % 3 == 0:
                raise RefusedReplyError("the service will not answer")
            return super().edit(context, preference, draft)

    found = prelude(worlds, tmp_path, Refuses(), user=Silent(), agents=["no_learning"], failures=1.0).run()
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    silent = [one for one in rounds if one["unanswered"]]
    assert {one["unanswered"] for one in silent} == {"agent refused", "user refused"}
    assert all((one["distance"], one["normalised"], one["edited"]) == (0, 1.0, "") for one in silent)
    assert all(one["draft"] == "" for one in silent if one["unanswered"] == "agent refused")
    own = found["no_learning"]
    assert own["unanswered"] == len(silent) and own["odd"] == sum(one["unanswered"][0] == "a" for one in silent)
    assert own["untouched"] * len(rounds) == sum(one["distance"] == 0 and not one["unanswered"] for one in rounds)


def test_an_edit_that_the_memory_refuses_goes_unanswered_and_is_counted(worlds: Path, tmp_path: Path) -> None:
    """Draft and edited text of 39,000 characters of four bytes each, which both are short enough to be taken."""

    class Long(StyleWriter):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            return replace(super().generate(prompt, schema), text="\U00020000" * 39_000)

    class Replaces(StyleReader):
        def edit(self, context: str, preference: str, draft: str) -> str:
            return "\U00020001" * len(draft)

    found = prelude(worlds, tmp_path, Long(), user=Replaces(), agents=["icl_edit_5"], failures=1.0).run()["icl_edit_5"]
    assert {one["unanswered"] for one in read_jsonl(tmp_path / "rounds.jsonl")} == {"user unreadable"}
    assert (found["unanswered"], found["not_learnt"]) == (20, 0)


def test_what_could_not_be_learnt_from_is_caught_up(worlds: Path, tmp_path: Path) -> None:
    """The first time that a remark is filed it cannot be read, whatever the try; later it can."""
    failed: set[str] = set()

    class Late(ChoiceScript):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            made = super().generate(prompt, schema)
            begin = prompt.partition("</data>")[0]
            if '"salient"' in made.text and (begin not in failed or "could not be used" in prompt):
                failed.add(begin)
                return type(made)("Sorry.", made.tokens_in, made.tokens_out)
            return made

    found = pahf(worlds, tmp_path, Late(noise=0.0, overreach=0.0), feedback=["post"], failures=0.0).run()
    own = found["settings"]["post"]
    assert failed and own["not_learnt"] == 0 == own["unanswered"] and own["odd"] >= 3 * len(failed)
    assert own["calls"] > sum(one["calls"] for one in read_jsonl(tmp_path / "rounds.jsonl"))  # the catching up, too
    assert own["phase2"]["success"][0] > 0.7


def test_a_question_that_was_put_counts_though_the_round_went_unanswered(worlds: Path, tmp_path: Path) -> None:
    class NeverActs(ChoiceScript):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            if schema is not None and '"choice"' in schema.form():
                raise RefusedReplyError("an answer that ended by 'content_filter'")
            return super().generate(prompt, schema)

    user, heard = ScriptedUser(terse=0.0), list[str]()

    class Heard(ScriptedUser):
        def answer(self, scene: Any, question: str, phase: int) -> str:
            heard.append(question)
            return user.answer(scene, question, phase)

    pahf(worlds, tmp_path, NeverActs(overreach=0.0), user=Heard(terse=0.0), feedback=["both"], failures=1.0).run()
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    assert sum(one["asked"] for one in rounds) == len(heard) > 0
    assert any(one["unanswered"] and one["asked"] for one in rounds)


def test_results_of_a_run_that_ended_do_not_stand_beside_the_rounds_of_another(worlds: Path, tmp_path: Path) -> None:
    coreset(worlds, tmp_path, BioScript()).run()
    assert (tmp_path / "summary.json").exists()
    with pytest.raises(FailureBudgetError):
        coreset(worlds, tmp_path, NoGenerator(), failures=0.1).run()
    assert not (tmp_path / "summary.json").exists()
    assert len(read_jsonl(tmp_path / "turns.jsonl.before")) > len(read_jsonl(tmp_path / "turns.jsonl"))
    assert read_json(tmp_path / "summary.json.before")["figures"]  # nothing is lost before the other run ends
    coreset(worlds, tmp_path, BioScript()).run()
    assert not list(tmp_path.glob("*.before"))


def test_remarks_that_are_never_learnt_are_counted_by_coreset(worlds: Path, tmp_path: Path) -> None:
    class NoNotes(BioScript):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            made = super().generate(prompt, schema)
            return replace(made, text=" ") if "scratchpad" in fenced_data(prompt) else made

    found = coreset(worlds, tmp_path, NoNotes(), agents=["scratchpad", "coreset_recency_exact"]).run()
    turns = [one for one in read_jsonl(worlds / "bios/conversations.jsonl") if one["scenario"] == "mixed"]
    count = sum(len(own["turns"]) for own in turns)
    figures = found["figures"]["mixed"]["3"]
    assert figures["scratchpad"]["not_learnt"] == count > 0 and figures["coreset_recency_exact"]["not_learnt"] == 0


@pytest.mark.parametrize(
    ("make", "file", "change", "error"),
    [
        (prelude, "style/contexts.jsonl", {"id": "é" * 101}, "id: expected at most 200 bytes, got 202"),
        (prelude, "style/contexts.jsonl", {"text": "x" * 40_001}, "text: expected at most 40,000 characters"),
        (pahf, "pahf/phase3.jsonl", {"user": "u" * 201}, "user: expected at most 200 bytes"),
        (
            pahf,
            "pahf/phase3.jsonl",
            {"instruction": "x" * 40_000},
            "instruction and options: expected at most 40,000 characters",
        ),
        (coreset, "bios/conversations.jsonl", {"id": "c" * 201}, "id: expected at most 200 bytes"),
    ],
)
def test_what_no_memory_takes_is_refused_before_the_start(
    worlds: Path, tmp_path: Path, make: Any, file: str, change: dict[str, Any], error: str
) -> None:
    shutil.copytree(worlds, tmp_path / "worlds")
    rows = list(read_jsonl(worlds / file))
    write_jsonl(tmp_path / "worlds" / file, [*rows[:-1], {**rows[-1], **change}])
    with pytest.raises(DataError) as raised:
        make(tmp_path / "worlds", tmp_path / "run", NoGenerator()).run()
    assert error in str(raised.value) and Path(file).name in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_user_without_a_persona_is_refused_before_the_start(worlds: Path, tmp_path: Path) -> None:
    (tmp_path / "personas.py").write_text("prompt_nobody = 'A persona.'\n")
    user = ModelUser(NoGenerator(), changed_personas=str(tmp_path / "personas.py"))
    with pytest.raises(DataError, match="there is no persona of"):
        pahf(worlds, tmp_path / "run", NoGenerator(), user=user).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("make", [pahf, prelude, coreset])
def test_budgets_that_are_refused(worlds: Path, tmp_path: Path, make: Any) -> None:
    for failures in (-0.1, 1.1, "some"):
        with pytest.raises(ConfigError, match="failures"):
            make(worlds, tmp_path, ChoiceScript(), failures=failures)
