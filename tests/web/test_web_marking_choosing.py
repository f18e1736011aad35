"""What is marked next in a project of the server: which items move, by which rule, and what stays where it is."""

from __future__ import annotations

import html
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("sqlalchemy")

from annotation_toy import item
from marking_toy import Office, change
from reward_model_samples import enlarged, save_longformer

from finegrained_rlhf.annotation.items import LEAST_RANDOM, AnnotationItem
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.web.marking import choosing
from finegrained_rlhf.web.marking.choosing import RULES, trained_models
from reward_models import UncertainSelection
from reward_models.encoders.models import new_reward_model
from reward_models.record import RewardModelRecord

WORDS = ("It is cold.", "It was warm; not so, they say.", "good bad word filler one two three", "Yes! It is wide.")
SINGLE = [f"s{number:02}" for number in range(20)]


def items() -> list[AnnotationItem]:
    single = [
        item(name, answers=(" ".join(WORDS[: 1 + n % 4] * (1 + n // 4)), "Two.")) for n, name in enumerate(SINGLE)
    ]
    first = item("qual", role="qualification")
    return [first, *(item(f"o{number}", role="overlap") for number in range(4)), *single]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """An office with 20 single items, and two trained models in the layout of a run and of a directory."""
    made = Office(tmp_path / "served", items=items())
    for name in made.project.annotators:
        made.owner.write(made.here, action="admit", name=name)
    encoder = save_longformer(tmp_path / "encoder")
    for kind, place in (("relevance", "runs/one/model"), ("factuality", "two")):
        enlarged(new_reward_model(encoder, RewardModelRecord(kind))).save(made.directory / place)
    (made.directory / "runs/one/config.yaml").write_text("{}")
    return made


def lists(office: Office) -> dict[str, list[str]]:
    """What each annotator comes to, in order, as the page is given it."""
    work = office.marking.work
    return {
        name: [task["item"] for task in work.payload(office.key, name)["tasks"]] for name in office.project.annotators
    }


def choose(office: Office, rule: str, *models: str) -> Any:
    return office.owner.write(office.here, action="select", select=rule, **{f"model {name}": "on" for name in models})


def strategies(office: Office) -> dict[str, str]:
    return {name: one.strategy for name, one in office.marking.work.project(office.key).items.items()}


def test_the_rules_are_those_of_the_command() -> None:
    for name, target in RULES.items():
        assert yaml.safe_load(Path(f"conf/select/{name}.yaml").read_text())["_target_"] == target


def test_a_rule_orders_what_nobody_has_begun_and_moves_nothing_else(office: Office) -> None:
    before = lists(office)
    begun = [next(name for name in before["ann"] if name in SINGLE), "o2"]
    for name in begun:
        office.send("ann", change(name, {"correction": "mine"}))
    page = office.owner.get(office.here).text
    assert '<input type="checkbox" name="model runs/one">' in page and 'name="model two"' in page
    said = choose(office, "uncertain", "runs/one", "two")
    assert said.status_code == 200 and "19 items that nobody has begun are ordered by uncertain now" in said.text
    after, chosen = lists(office), strategies(office)
    still = {place for name in ("qual", "o0", "o1", "o2", "o3", *begun) for place in [before["ann"].index(name)]}
    assert [after["ann"][place] for place in sorted(still)] == [before["ann"][place] for place in sorted(still)]
    for name in ("ann", "ben"):
        assert sorted(after[name]) == sorted(before[name]) and after[name] != before[name]
    by_rule = [name for name in SINGLE if chosen[name] == "uncertain"]
    assert len(by_rule) == 19 - round(LEAST_RANDOM * 19) and begun[0] not in by_rule
    wanted = [one for one in items() if one.id in by_rule]
    models = [str(office.directory / name) for name in ("runs/one", "two")]
    best = [wanted[place].id for place in UncertainSelection(models=models).order(wanted)]
    first = list[str]()
    for name in ("ann", "ben"):
        mine = [one for one in after[name] if one in by_rule]
        assert mine == [one for one in best if one in mine]
        first += [one for one in after[name] if one in SINGLE and one not in begun][:5]
    # chance is spread over all that is ordered; which of the two has how much of it is the project's key's
    assert any(one in by_rule for one in first) and any(one not in by_rule for one in first)
    assert office.marking.work.kept(office.key, "ann")[begun[0]]["state"]["correction"] == "mine"


def test_what_chance_has_stays_with_chance_and_what_chose_an_item_is_in_the_files(office: Office) -> None:
    choose(office, "diverse", "two")
    first = strategies(office)
    assert set(first.values()) == {"random", "diverse"}
    begun = lists(office)["ben"]
    mine = next(name for name in begun if first[name] == "diverse")
    office.finish("ben", mine, [(0, 5, "Irrelevant")])
    choose(office, "uncertain", "two")
    second = strategies(office)
    assert {name for name in second if second[name] == "random"} == {name for name in first if first[name] == "random"}
    assert second[mine] == "diverse" and list(second.values()).count("uncertain") == 20 - 6 - 1
    before = lists(office)
    choose(office, "random")
    assert lists(office) != before and strategies(office) == second
    office.owner.write(office.here, action="write")
    written = Project.read(office.directory / "tasks_marked").items
    assert {name: one.strategy for name, one in written.items()} == second


def test_without_a_trained_model_chance_alone_is_offered(tmp_path: Path) -> None:
    office = Office(tmp_path, items=items())
    page = office.owner.get(office.here).text
    assert "<option>random</option>" in page and "<option>uncertain</option>" not in page
    office.marking.work.admit(office.key, "ann")
    before = lists(office)["ann"]
    assert choose(office, "random").status_code == 200
    after = lists(office)["ann"]
    assert after != before and sorted(after) == sorted(before)
    assert choose(office, "random").status_code == 200 and lists(office)["ann"] == after  # the project's own chance


WRONG: dict[str, tuple[str, tuple[str, ...], str]] = {
    "an unknown rule": ("drift", ("two",), "expected one of uncertain, disagree, diverse, random, got 'drift'"),
    "no model": ("uncertain", (), "models: expected one reward model or more"),
    "one of a kind": ("disagree", ("two", "runs/one"), "expected two"),
    "a model above": (
        "uncertain",
        ("../encoder",),
        "expected a directory with a trained reward model, got '../encoder'",
    ),
    "a directory that is no model": ("uncertain", ("tasks",), "expected a directory with a trained reward model"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_chosen_is_one_line_and_moves_nothing(office: Office, wrong: str) -> None:
    rule, models, words = WRONG[wrong]
    before = lists(office), strategies(office)
    refused = choose(office, rule, *models)
    assert refused.status_code == 422 and words in html.unescape(refused.text)
    assert (lists(office), strategies(office)) == before


def test_one_choice_at_a_time_and_nobody_but_an_owner_chooses(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lists(office)
    for name in ("rita", "ann"):
        refused = office.people[name].write(office.here, action="select", select="random")
        assert refused.status_code == 404
    asked, free = threading.Event(), threading.Event()
    ordered = choosing._ordered
    monkeypatch.setattr(choosing, "_ordered", lambda *given: asked.set() or free.wait(30) and ordered(*given))
    first = threading.Thread(target=choosing.choose_next, args=(office.marking.work, office.key, "random", ()))
    first.start()
    assert asked.wait(30)
    refused = choose(office, "random")
    free.set()
    first.join()
    assert refused.status_code == 422 and "is being chosen already" in refused.text and lists(office) != before


def test_models_are_found_as_runs_or_directories_and_not_over_links(office: Office, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (office.directory / "linked").symlink_to(office.directory / "two")
    assert trained_models(office.directory) == ["runs/one", "two"]
