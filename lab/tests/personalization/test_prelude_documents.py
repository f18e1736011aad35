"""PRELUDE on one's own documents: rounds that are drawn, experiment files, a user in two stages, tokens, BERTScore."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from finegrained_lab.protocols import BertScore, MakePreludeContexts, ModelEditor, RunPrelude
from finegrained_lab.protocols.prelude.inputs.documents import TASTES_OF_TASKS, read_prelude_experiment
from finegrained_lab.protocols.prelude.measures import closest_source
from finegrained_lab.protocols.prelude.run import cost_tokeniser
from finegrained_lab.worlds.style import StyleReader, StyleWriter
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError, ModelError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.generation.outcomes import FailureBudgetError, RefusedReplyError
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization.prompts import UnreadableReplyError, fenced_data

EMAIL = list(TASTES_OF_TASKS["email"])


def documents(path: Path, counts: dict[str, int]) -> str:
    rows = [
        {"id": f"{source}-{number}", "source": source, "text": f"{source} {number}"}
        for source, count in counts.items()
        for number in range(count)
    ]
    write_jsonl(path, rows)
    return str(path)


def drawn(path: Path, **keys: Any) -> list[dict[str, str]]:
    MakePreludeContexts(output_dir=str(path), task="email", **{"rounds": 12, **keys}).run()
    return read_jsonl(path / "contexts.jsonl")


def test_every_source_is_drawn_by_itself(tmp_path: Path) -> None:
    few = documents(tmp_path / "few.jsonl", dict.fromkeys(EMAIL, 9))
    more = documents(tmp_path / "more.jsonl", {**dict.fromkeys(EMAIL, 9), EMAIL[0]: 30, "another": 5})
    first, again, other = (
        drawn(tmp_path / name, documents=few, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 2))
    )
    assert first == again != other and sorted({row["source"] for row in first}) == sorted(EMAIL)
    assert [sum(row["source"] == source for row in first) for source in EMAIL] == [3, 3, 3, 3]
    assert [row["source"] for row in first] != sorted(row["source"] for row in first)
    larger = drawn(tmp_path / "d", documents=more)
    for source in EMAIL[1:]:  # where the first source is larger, what is taken of the others is the same
        assert [row for row in larger if row["source"] == source] == [row for row in first if row["source"] == source]
    assert read_json(tmp_path / "a/preferences.json") == TASTES_OF_TASKS["email"]
    for wrong in ({"rounds": 40}, {"rounds": 3}):
        with pytest.raises(FineGrainedError):
            drawn(tmp_path / "e", documents=few, **wrong)
    assert not (tmp_path / "e").exists()
    for bad in ({"task": "poem"}, {"seed": -1}, {"rounds": 0}):
        with pytest.raises(ConfigError):
            MakePreludeContexts(few, "out", **bad)


def test_compat_draws_as_the_released_code(tmp_path: Path) -> None:
    """One generator for all sources in turn, then for the whole; its preferences."""
    file = documents(tmp_path / "d.jsonl", dict.fromkeys(EMAIL, 7))
    rng = np.random.default_rng(4)
    lists = [[f"{source}-{number}" for number in range(7)] for source in EMAIL]
    for one in lists:
        rng.shuffle(one)
    expected = [name for one in lists for name in one[:3]]
    rng.shuffle(expected)
    assert [row["id"] for row in drawn(tmp_path / "a", documents=file, seed=4, compat=True)] == expected
    assert read_json(tmp_path / "a/preferences.json")["slf5k"] == "informal, conversational, no closing"


def experiment(**task: Any) -> dict[str, Any]:
    agents = {"o": {"agent": "oracle-preference"}, "x": {"agent": "explore-exploit", "num_ex_to_explore": 5}}
    agents["c1"] = {"agent": "cipher-1", "encoder_type": "bert"}
    agents["c5"] = {"agent": "cipher-n", "icl_count": 5, "encoder_type": "mpnet"}
    agents["i5"] = {"agent": "icl-edit", "icl_count": 5, "encoder_type": "mpnet"}
    return {"task_config": {"task": "email", "num_train_ex": 8, "seed": 1, **task}, "agent_configs": agents}


def test_experiment_files_of_the_paper(tmp_path: Path) -> None:
    write_json(tmp_path / "email-1.json", experiment())
    found = read_prelude_experiment(tmp_path / "email-1.json")
    assert (found.task, found.rounds, found.seed, list(found.sources)) == ("email", 8, 1, EMAIL)
    assert found.agents == {
        "": ("oracle", "explore_then_exploit"), "bert": ("cipher_1",), "mpnet": ("cipher_5", "icl_edit_5")
    }  # fmt: skip
    file = documents(tmp_path / "d.jsonl", dict.fromkeys(EMAIL, 3))
    made = MakePreludeContexts(file, str(tmp_path / "out"), str(tmp_path / "email-1.json")).run()
    assert (made["rounds"], made["each"], made["seed"], made["task"]) == (8, 2, 1, "email")
    good = experiment()
    for wrong in (
        experiment(task="poem"),
        experiment(num_train_ex=-1),
        experiment(seed=None),
        experiment(datasets=["imdb"]),
        {**good, "agent_configs": {"a": {"agent": "magic"}}},
        {**good, "agent_configs": {"a": {"agent": "cipher-n", "icl_count": 0}}},
        {"task_config": good["task_config"]},
        [],
    ):
        write_json(tmp_path / "bad.json", wrong)
        with pytest.raises(DataError, match=r"bad\.json"):
            read_prelude_experiment(tmp_path / "bad.json")


def editor(*replies: str, **keys: Any) -> tuple[ModelEditor, ScriptedGenerator]:
    llm = ScriptedGenerator(list(replies))
    return ModelEditor(llm, **keys), llm


def test_a_user_in_two_stages() -> None:
    user, llm = editor('{"satisfied": "yes"}')
    assert user.edit("c", "short", "d") == "d" and fenced_data(llm.prompts[0])["preference"] == "short"
    user, llm = editor('{"satisfied": "no"}', " Edited. ")
    assert user.edit("c", "short", "d") == "Edited." and "context" not in fenced_data(llm.prompts[1])
    user, llm = editor("Eyes: yes or no?", '{"satisfied": "yes or no"}', '{"satisfied": "no"}', " ", "E")
    assert user.edit("c", "p", "d") == "E"  # neither a "yes" somewhere nor an empty edit counts
    assert len(llm.prompts) == 5 == len(set(llm.prompts))
    user, llm = editor("Well.", "Well.", "Well.")
    with pytest.raises(UnreadableReplyError, match="satisfied"):
        user.edit("c", "p", "d")
    assert len(llm.prompts) == 3
    compat, llm = editor("No, though yesterday it was.", compat=True)
    assert compat.edit("c", "p", "d") == "d" and len(llm.prompts) == 1
    with pytest.raises(ConfigError):
        editor(tries=0)


def test_a_filtered_answer_is_the_outcome_of_a_round(tmp_path: Path) -> None:
    asked = []

    def refuse(prompt: str) -> str:
        asked.append(prompt)
        raise RefusedReplyError("an answer that ended by 'content_filter'")

    write_jsonl(tmp_path / "contexts.jsonl", [{"id": "1", "source": "a", "text": "x"}])
    write_json(tmp_path / "preferences.json", {"a": "short"})
    files = (str(tmp_path / "contexts.jsonl"), str(tmp_path / "preferences.json"), str(tmp_path / "out"))
    user = ModelEditor(ScriptedGenerator(refuse))
    run = RunPrelude(*files, ScriptedGenerator(["d", "d"]), user, agents=["no_learning"], plots=False, progress=False)
    assert run.run()["no_learning"]["unanswered"] == 1 == len(asked)
    with pytest.raises(FailureBudgetError, match="failures=0: .*user refused.*content_filter"):
        replace(run, failures=0.0).run()
    assert read_jsonl(tmp_path / "out/rounds.jsonl")[0]["unanswered"] == "user refused"


def test_tokens_of_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost_tokeniser("words")("It's 5.") == ["It", "'", "s", "5", "."]
    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(word_tokenize=lambda text: text.split()))
    assert cost_tokeniser("nltk")("It's 5.") == ["It's", "5."]
    encoding = SimpleNamespace(encode_ordinary=lambda text: [ord(letter) for letter in text])
    monkeypatch.setitem(sys.modules, "tiktoken", SimpleNamespace(get_encoding=lambda name: encoding))
    assert cost_tokeniser("tiktoken")("ab") == ["97", "98"]

    def nothing(text: str) -> list[str]:
        raise LookupError

    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(word_tokenize=nothing))
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    for name in ("nltk", "tiktoken", "letters"):
        with pytest.raises(ConfigError, match="cost_tokens"):
            RunPrelude("c", "p", "o", StyleWriter(), StyleReader(), cost_tokens=name)


def test_bertscore_chooses_the_closest_source(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    class Scorer:
        def __init__(self, **keys: Any) -> None:
            made.append(keys)
            if keys["model_type"] == "none":
                raise KeyError("none")

        def score(self, candidates: list[str], references: list[str]) -> tuple[Any, Any, list[float]]:
            shared = [len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in zip(candidates, references, strict=True)]
            return None, None, shared

    monkeypatch.setitem(sys.modules, "bert_score", SimpleNamespace(BERTScorer=Scorer))
    similarity = BertScore("DIR", 9)
    assert closest_source("abc", {"x": "abd", "y": "xyz"}, similarity) == "x"
    assert made == [{"model_type": "DIR", "num_layers": 9, "device": None}]  # loaded once, when it is first asked
    with pytest.raises(ModelError, match="layer"):
        BertScore("none")("a", "b")
    monkeypatch.setitem(sys.modules, "bert_score", None)
    with pytest.raises(ConfigError, match="bertscore"):
        BertScore()("a", "b")
    with pytest.raises(ConfigError):
        BertScore(layer=0)


def test_similarity_and_tokens_reach_the_figures(tmp_path: Path) -> None:
    """Who is closest follows the similarity that is given."""
    write_jsonl(tmp_path / "contexts.jsonl", [{"id": "1", "source": "news", "text": "x"}])
    write_json(tmp_path / "preferences.json", {"news": "short", "lab": "bullet points"})
    files = (str(tmp_path / "contexts.jsonl"), str(tmp_path / "preferences.json"), str(tmp_path / "out"))
    keys = {"agents": ["oracle"], "progress": False}
    user, _ = editor(json.dumps({"satisfied": "no"}), "one two")
    found = RunPrelude(
        *files, ScriptedGenerator(["one"]), user, similarity=lambda a, b: float(b == "bullet points"), **keys
    ).run()
    assert found["oracle"]["preference_accuracy"] == 0.0 and found["oracle"]["cost"] == 1


def test_a_similarity_that_cannot_be_had_is_missed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bert_score", None)
    write_jsonl(tmp_path / "contexts.jsonl", [{"id": "1", "source": "news", "text": "x"}])
    write_json(tmp_path / "preferences.json", {"news": "short"})
    files = (str(tmp_path / "contexts.jsonl"), str(tmp_path / "preferences.json"), str(tmp_path / "out"))
    llm = ScriptedGenerator([])
    with pytest.raises(ConfigError, match="bertscore"):
        RunPrelude(*files, llm, StyleReader(), similarity=BertScore(), progress=False).run()
    assert not llm.prompts
