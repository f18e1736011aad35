"""Small models by constrained choice: true answers, prompts, probabilities, and the table."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finegrained_lab.experiments.personalization import (
    AskChoices,
    ChosenPreferencesTable,
    PreferenceChooser,
    SmallModelsTable,
)
from finegrained_lab.experiments.personalization.choices import scorer as choice_scorer
from finegrained_lab.experiments.personalization.choices.items import (
    FORMATS,
    TASKS,
    TaskName,
    choice_prompt,
    conflict_prompt,
    draw_groups,
    shuffled_answers,
)
from finegrained_lab.experiments.personalization.choices.scorer import ChoiceScorer
from finegrained_lab.protocols import RunPrelude
from finegrained_lab.worlds.bios.lexicon import facts_of, stated_in
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader
from finegrained_lab.worlds.style.styles import described, style_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.models.tiny_networks import build_llama, build_tokenizer, causal_tokenizer

SHOTS: dict[TaskName, list[int]] = {"conflict": [2, 4], "style_value": [2]}


@pytest.mark.parametrize("task", TASKS)
def test_what_is_said_to_be_true_is_true(task: TaskName) -> None:
    """Read from the texts alone, by the worlds' readers."""
    groups = draw_groups(task, 5, 12, 10, 6)
    asked = [item for group in groups for item in (*group.items, *group.shots)]
    for item in asked:
        assert item.answer in item.options
        if task.startswith("conflict"):
            stated = [fact for text in item.material.values() for fact in stated_in(text)][-2:]
            people = [facts_of(text) for label, text in item.material.items() if label.startswith("Person")]
            if people:
                nobody = not any(all(one[fact.attribute] == fact.value for fact in stated) for one in people)
                assert len({fact.attribute for fact in stated}) == 2
            else:
                nobody = stated[0].attribute == stated[1].attribute and stated[0].value != stated[1].value
            assert item.answer == ("yes" if nobody else "no")
        elif task == "style_value":
            assert style_of(item.material["Edited"])[item.asked.lower()] == item.answer
            assert item.material["Draft"] != item.material["Edited"]
        else:
            style = style_of(item.material["Edited"])
            assert [one for one in item.options if described(one).items() <= style.items()].count(item.answer) == 1
    for group in groups:
        assert max(Counter(one.answer for one in group.items).values()) <= -(-10 // len(group.items[0].options))
    assert draw_groups(task, 5, 1, 10, 3)[0].items == groups[0].items  # whatever is shown before them
    assert draw_groups(task, 6, 1, 10, 3)[0].items != groups[0].items


@pytest.mark.parametrize("form", FORMATS)
def test_a_prompt_shows_the_answers_of_its_examples_alone(form: Any) -> None:
    (group,) = draw_groups("conflict", 1, 1, 2, 3)
    item = group.items[0]
    prompt = choice_prompt(form, group.shots, item)
    assert all(one.material["Remark 2"] in prompt.before for one in group.shots)
    assert item.material["Remark 1"] in prompt.asked and item.material["Remark 1"] not in prompt.before
    if form == "json":
        lines = [json.loads(line) for line in prompt.before.split("\n\n")[1:4]]
        assert [line["Contradiction"] for line in lines] == [one.answer for one in group.shots]
        assert json.loads(prompt.asked + prompt.options[0] + '"}')["Contradiction"] == "yes"
    else:
        shown = re.findall(r"(?:Contradiction|Answer): (yes|no)", prompt.before)
        assert shown == [one.answer for one in group.shots] and prompt.options == (" yes", " no")
    free = choice_prompt(form, group.shots, item.without_content())
    assert free.before == prompt.before and item.material["Remark 1"] not in free.asked and "N/A" in free.asked
    wrong = shuffled_answers(group.shots, random.Random(3))
    assert Counter(one.answer for one in wrong) == Counter(one.answer for one in group.shots)
    assert [replace(one, answer="") for one in wrong] == [replace(one, answer="") for one in group.shots]


def test_coresets_own_prompt() -> None:
    (group,) = draw_groups("conflict_documents", 1, 1, 1, 1)
    prompt = conflict_prompt(group.items[0])
    assert "one and the same entity" in prompt.before and prompt.options == ("yes", "no")
    assert prompt.asked.endswith('</data>\n{"conflict": "')
    assert all(json.dumps(text) in prompt.asked for text in group.items[0].material.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that knows the words of two tasks, and nothing else."""
    texts = []
    for task in SHOTS:
        for group in draw_groups(task, 1, 6, 4, 4):
            for item in group.items:
                prompt = choice_prompt("lines", group.shots, item)
                texts += [prompt.before, prompt.asked, *prompt.options]
    directory = tmp_path_factory.mktemp("small") / "llama"
    tokenizer = causal_tokenizer(build_tokenizer(texts), 2048)
    with torch.random.fork_rng():
        build_llama(tokenizer, TinyLlamaConfig(d_model=32, max_length=2048), seed=4).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("task", SHOTS)
def test_probabilities_are_transformers_own(model: Path, task: TaskName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of options of one token, and of several."""
    monkeypatch.setattr(choice_scorer, "best_precision", lambda device, flags: ("fp32", ""))
    policy = open_policy(model)
    scorer = ChoiceScorer(policy)
    (group,) = draw_groups(task, 1, 1, 3, 2)
    prompts = [choice_prompt("lines", group.shots, item) for item in group.items]
    for prompt, found in zip(prompts, scorer.logprobs(prompts), strict=True):
        for option, value in zip(prompt.options, found, strict=True):
            parts = [policy.tokenizer(prompt.before).input_ids]
            parts += [policy.tokenizer(text, add_special_tokens=False).input_ids for text in (prompt.asked, option)]
            with torch.no_grad():
                logits = policy.model(torch.tensor([sum(parts, [])])).logits[0].log_softmax(-1)
            begin = len(parts[0]) + len(parts[1])
            expected = sum(float(logits[begin + i - 1, token]) for i, token in enumerate(parts[2]))
            assert value == pytest.approx(expected, abs=1e-4)
    with pytest.raises(DataError, match="begin alike"):
        scorer.logprobs([prompts[0], choice_prompt("lines", (), group.items[0])])


def job(model: Path, output: Path, **keys: Any) -> AskChoices:
    given = {
        "dev_seed": 1,
        "seeds": [2, 3],
        "forms": ["lines"],
        "shots": SHOTS,
        "dev_groups": 1,
        "groups": 2,
        "size": 4,
    }
    return AskChoices(model=str(model), output=str(output), **{**given, **keys})


def test_the_job_and_its_page(model: Path, tmp_path: Path) -> None:
    asked = job(model, tmp_path / "a.json").run()
    assert asked == read_json(tmp_path / "a.json") and list(asked["tasks"]) == list(SHOTS)
    task = asked["tasks"]["conflict"]
    assert [(row["form"], row["shots"]) for row in task["dev"]] == [("lines", 2), ("lines", 4)]
    best = max(task["dev"], key=lambda row: row["plain"] + row["calibrated"])
    assert task["chosen"] == {"form": best["form"], "shots": best["shots"]}
    assert len(task["items"]) == 2 * 2 * 4 and len(task["items"][0]["picked"]) == 9  # nearest, and four rows twice
    assert len(asked["tasks"]["style_value"]["items"][0]["picked"]) == 7
    for one in task["items"]:  # a model that is always right, but for its control
        one["picked"]["examples"] = one["answer"]
        one["picked"]["shuffled"] = "no"
    write_json(tmp_path / "b.json", asked)
    files = {"blind": str(tmp_path / "a.json"), "seeing": str(tmp_path / "b.json")}
    table = SmallModelsTable(str(tmp_path / "t.json"), "a command", models=files, chosen="Nothing.")
    result, page = table.run(), (tmp_path / "t.md").read_text(encoding="utf-8")
    rows = {(row["model"], row["row"]): row for row in result["tasks"]["conflict"]["rows"]}
    assert rows["–", "most frequent"]["right"][0] == 0.5 and rows["seeing", "examples"]["right"] == [1.0, 1.0, 1.0]
    assert rows["seeing", "examples"]["by_seed"] == {"2": 1.0, "3": 1.0}
    values = {row["row"]: row for row in result["tasks"]["style_value"]["rows"] if row["model"] == "–"}
    assert values["most frequent"]["right"][0] == 0.5  # of two values, dimension by dimension
    assert "**1 of 8 rows with examples is above both" in page and "seeing, conflict, `examples`." in page
    (tmp_path / "c.json").write_text((tmp_path / "a.json").read_text().replace('"answer": "yes"', '"answer": "no"', 1))
    with pytest.raises(DataError, match="different questions"):
        replace(table, models={**files, "other": str(tmp_path / "c.json")}).run()


@pytest.mark.parametrize("keys", [{"seeds": [1]}, {"seeds": []}, {"forms": []}, {"forms": ["poem"]}, {"shots": {}}])
def test_settings_that_are_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    for wrong in (keys, {"shots": {"conflict": [0]}}, {"shots": {"conflict": []}}):
        with pytest.raises(ConfigError):
            job(tmp_path, tmp_path / "x.json", **wrong)


def test_cipher_by_chosen_preferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reads its examples finds what edits show; shuffled ones, none and chance say less."""

    class Reading:
        """In place of a scorer: certain of the answer of the example with the same style, else of the first option."""

        def __init__(self, policy: Any) -> None:
            assert policy == "opened"

        def logprobs(self, prompts: Any) -> list[list[float]]:
            asked = style_of(prompts[0].asked.partition("Edited: ")[2].rpartition("\nStyle:")[0])
            shown = re.findall(r"Edited: (.*?)\nStyle: (.*?)\n\n", prompts[0].before, re.DOTALL)
            answer = next((answer for text, answer in shown if style_of(text) == asked), "")
            certain = [float(f" {answer}" == option) for option in prompts[0].options]
            return [certain, [0.0] * len(certain)]

    monkeypatch.setattr(choice_scorer, "ChoiceScorer", Reading)
    monkeypatch.setattr("finegrained_rlhf.models.loading.open_policy", lambda model: "opened")
    for seed in (1, 2):
        root = tmp_path / f"seed_{seed}"
        MakeStyleWorld(str(root / "world"), seed=seed, contexts=20).run()
        files = [str(root / "world" / name) for name in ("contexts.jsonl", "preferences.json")]
        for kind in ("script", "examples", "shuffled", "zero_shot", "chance"):
            llm = PreferenceChooser(kind=kind, model="m", shots=10, seed=seed)
            agents = ["oracle", "no_learning", "cipher_5"] if kind == "script" else ["cipher_5"]
            keys = {"agents": agents, "plots": False, "progress": False}
            RunPrelude(*files, str(root / kind), llm, StyleReader(), **keys).run()
        write_json(root / "experiment.json", {"seed": seed, "settings": {"contexts": 20, "shots": 10, "model": "m"}})
    table = ChosenPreferencesTable(str(tmp_path / "t.json"), "a command", str(tmp_path), [1, 2], chosen="Nothing.")
    result, page = table.run(), (tmp_path / "t.md").read_text(encoding="utf-8")
    cost = {name: by["cost"]["mean"] for name, by in result["summary"].items()}
    assert cost["oracle"] == 0 and len(result["rows"]) == 7 * 2
    assert cost["script"] == cost["examples"] < min(cost["shuffled"], cost["zero_shot"], cost["chance"])
    assert "preference_accuracy" not in result["summary"]["no_learning"] and "by m behind 10 answered" in page
    write_json(tmp_path / "seed_2/chance/summary.json", {"agents": {}})
    with pytest.raises(DataError, match="no such agent"):
        table.run()
    with pytest.raises(ConfigError, match="model"):
        PreferenceChooser(kind="shuffled")
