"""Few-shot rewrites: the prompt word for word, demonstrations, what is read of answers, a policy and an endpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from chat_toy import save_chat_model
from conqrr_toy import make_files, questions
from remote_toy import FakeService, chat

from finegrained_lab.baselines.few_shot import (
    EndpointWriter,
    FewShotConfig,
    PolicyWriter,
    RewriteFewShot,
    few_shot_prompt,
    line_is_whole,
    ranked_demonstrations,
    rewrite_in,
)
from finegrained_rlhf.conqrr.data import RewriteExample, read_cut, read_rewrites, write_rewrite_jsonl
from finegrained_rlhf.conqrr.rewriting import WrittenRewrite
from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.runtime.remote.client import RemoteConfig
from finegrained_rlhf.text.chat import PromptConfig

SHOT = RewriteExample("t_2", "t", 2, ("who is Ada?", "a\npoet"), "when?", "when was Ada born?")
ASKED = RewriteExample("d_3", "d", 3, ("who made it", "Bob did", "why", ""), "and where?", "where did Bob make it?")


def test_the_prompt_word_for_word() -> None:
    """Line breaks become blanks, so that a line stays a turn; an unknown answer is left out; no rewrite is shown."""
    prompt = few_shot_prompt(ASKED, [SHOT], FewShotConfig(1, instruction="Rewrite. "))
    assert prompt == (
        "Rewrite.\n\n"
        "Conversation:\nQ: who is Ada?\nA: a poet\nQ: when?\nRewrite: when was Ada born?\n\n"
        "Conversation:\nQ: who made it\nA: Bob did\nQ: why\nQ: and where?\nRewrite:"
    )
    assert "where did Bob" not in prompt
    assert few_shot_prompt(ASKED, [], FewShotConfig(0, instruction="x")).startswith("x\n\nConversation:\nQ: who made")


@pytest.mark.parametrize(("words", "turns"), [(6, 3), (5, 2), (3, 2), (2, 1), (0, 0)])
def test_the_oldest_turns_go_first(words: int, turns: int) -> None:
    """`who made it` has three words, `Bob did` two, `why` one: whole turns."""
    kept = few_shot_prompt(ASKED, [], FewShotConfig(0, max_words=words)).split("Conversation:\n")[1].splitlines()
    assert kept == ["Q: who made it", "A: Bob did", "Q: why"][3 - turns :] + ["Q: and where?", "Rewrite:"]


def test_demonstrations_are_later_questions_with_another_rewrite_one_a_dialogue() -> None:
    first = RewriteExample("a_1", "a", 1, (), "who?", "who is Ada?")
    same = RewriteExample("b_2", "b", 2, ("q", "a"), "who is Bob?", "who is Bob? ")
    without = RewriteExample("c_2", "c", 2, ("q", "a"), "who?")
    two = [SHOT, replace(SHOT, id="t_3", turn=3)]
    for seed in range(5):
        found = ranked_demonstrations([first, same, without, *two, ASKED], seed)
        assert sorted(example.dialogue for example in found) == ["d", "t"]
        assert found == ranked_demonstrations([ASKED, *two[::-1], first], seed)
    many = [replace(SHOT, id=f"{i}_2", dialogue=str(i)) for i in range(30)]
    orders = {tuple(e.id for e in ranked_demonstrations(many, seed)) for seed in range(3)}
    assert len(orders) == 3


def test_no_demonstration_of_the_same_dialogue() -> None:
    others = [replace(SHOT, id=f"{i}_2", dialogue=str(i), rewrite=f"rewrite {i}") for i in range(3)]
    own = replace(ASKED, id="d_2", turn=2, rewrite="its own")
    prompt = few_shot_prompt(ASKED, [own, *others], FewShotConfig(2))
    assert "rewrite 0" in prompt and "rewrite 1" in prompt and "rewrite 2" not in prompt and "its own" not in prompt
    with pytest.raises(DataError, match="record d_3: expected 4 dialogues with a demonstration beside its own, got 3"):
        few_shot_prompt(ASKED, [own, *others], FewShotConfig(4))


@pytest.mark.parametrize(
    ("answer", "rewrite"),
    [
        (" where did Bob make it?\n\nConversation:\nQ: x", "where did Bob make it?"),
        ('\n\n Rewrite: "where did Bob make it?"\n', "where did Bob make it?"),
        ("Rewritten question: “where?”", "where?"),
        ("Q: where?", "where?"),
        ("Quince: what is it?", "Quince: what is it?"),
        ('"Bob" or "Ada"?', '"Bob" or "Ada"?'),
        ("<think>\nhm\n</think>\nwhere?", "where?"),
        ("<think>it never en", ""),
        ("", ""),
        (" \n ", ""),
        ('""', ""),
        ("Rewrite:", ""),
    ],
)
def test_what_of_an_answer_is_the_rewrite(answer: str, rewrite: str) -> None:
    assert rewrite_in(answer) == rewrite


@pytest.mark.parametrize(
    ("answer", "finished", "whole"),
    [("where?\nQ", False, True), ("\n where di", False, False), ("where?", True, True), ("where?\n", False, True)],
)
def test_a_line_that_the_limit_cut(answer: str, finished: bool, whole: bool) -> None:
    assert line_is_whole(answer, finished) == whole


# The job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted:
    """Answers from a script, by the last question of a prompt."""

    script: Mapping[str, tuple[str, bool]]

    def answers(self, prompts: Mapping[str, str], max_new_tokens: int) -> dict[str, WrittenRewrite]:
        return {name: WrittenRewrite(*self.script[text.split("Q: ")[-1]]) for name, text in prompts.items()}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    items = [ASKED, RewriteExample("e_1", "e", 1, (), "who is Eve?"), RewriteExample("f_1", "f", 1, (), "who is Flo?")]
    write_rewrite_jsonl(tmp_path / "test.jsonl", items)
    write_rewrite_jsonl(tmp_path / "train.jsonl", [SHOT])
    return {
        "data": str(tmp_path / "test.jsonl"),
        "output": str(tmp_path / "out.jsonl"),
        "demonstrations": str(tmp_path / "train.jsonl"),
        "few_shot": FewShotConfig(1),
    }


def test_the_job(data: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty answer falls back to the question, and is counted; the file is one that evaluations read."""
    script = {
        "and where?\nRewrite:": ("where did Bob make it?\nConversation:", False),
        "who is Eve?\nRewrite:": ("\n", True),
        "who is Flo?\nRewrite:": ("who is Flo", False),
    }
    RewriteFewShot(writer=Scripted(script), **data).run()
    assert read_jsonl(data["output"]) == [
        {"id": "d_3", "rewrite": "where did Bob make it?", "finished": True},
        {"id": "e_1", "rewrite": "who is Eve?", "finished": True, "fallback": True},
        {"id": "f_1", "rewrite": "who is Flo", "finished": False},
    ]
    assert read_rewrites(data["output"])["e_1"] == "who is Eve?" and read_cut(data["output"]) == {"f_1"}
    told = capsys.readouterr().out
    assert "3 questions rewritten" in told and "1 empty answers" in told and "1 cut off" in told


def test_what_the_job_refuses(data: dict[str, Any]) -> None:
    writer = Scripted({})
    with pytest.raises(ConfigError, match="demonstrations: expected a file"):
        RewriteFewShot(writer=writer, **{**data, "demonstrations": None})
    with pytest.raises(ConfigError, match="max_new_tokens"):
        RewriteFewShot(writer=writer, max_new_tokens=0, **data)
    for changes, name in (({"shots": -1}, "shots"), ({"max_words": -1}, "max_words"), ({"instruction": " "}, "instr")):
        with pytest.raises(ConfigError, match=name):
            FewShotConfig(**changes)
    with pytest.raises(DataError, match="train.jsonl, record d_3: expected 2 dialogues"):
        RewriteFewShot(writer=writer, **{**data, "few_shot": FewShotConfig(2)}).run()
    assert not Path(data["output"]).exists()


def test_a_policy_answers_as_generate_does(data: dict[str, Any], tmp_path: Path) -> None:
    """Greedily, and by a chat template where that is asked for; a prompt that is too long is refused, not cut."""
    writer = PolicyWriter(str(save_chat_model(tmp_path / "chat")), 200, 2)
    prompts = {"a": "the cat sat", "b": "who saw it", "c": "red blue"}
    policy = load(writer)
    for chat_template in ("off", "on"):
        found = replace(writer, prompt=PromptConfig(chat_template)).answers(prompts, 6)
        assert list(found) == ["a", "b", "c"]
        for name, text in prompts.items():
            if chat_template == "on":
                text = policy.tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                )
            ids = policy.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
            output = policy.model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
            ours = found[name].text.split()
            theirs = policy.tokenizer.decode(output, skip_special_tokens=True).split()
            assert ours == theirs[: len(ours)] and (len(ours) == len(theirs) or found[name].finished)
    with pytest.raises(DataError, match="record d_3: .*too long|record d_3.*tokens"):
        RewriteFewShot(writer=replace(writer, max_prompt_tokens=20), **data).run()


def load(writer: PolicyWriter) -> Any:
    from finegrained_rlhf.models.loading import open_policy

    return open_policy(writer.checkpoint)


def test_an_encoder_decoder_answers_too(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    output = tmp_path / "out.jsonl"
    RewriteFewShot(
        str(files / "questions.jsonl"),
        str(output),
        PolicyWriter(str(files / "t5")),
        str(files / "questions.jsonl"),
        FewShotConfig(2),
        8,
    ).run()
    assert list(read_rewrites(output)) == [question.id for question in questions()]


def endpoint(service: FakeService, tmp_path: Path, **changes: Any) -> EndpointWriter:
    remote = RemoteConfig(service.url, budget_s=0.05, backoff_s=0.01)
    return replace(EndpointWriter(remote, "some-model", str(tmp_path / "kept.sqlite")), **changes)


def test_an_endpoint_is_asked_once(data: dict[str, Any], tmp_path: Path) -> None:
    """The whole prompt is one message; a second run asks nothing, another model, limit or version asks again."""
    with FakeService(chat(lambda text: "where?" if "and where?" in text else "")) as service:
        job = RewriteFewShot(writer=endpoint(service, tmp_path), **data)
        job.run()
        rows = read_jsonl(data["output"])
        assert [row["rewrite"] for row in rows] == ["where?", "who is Eve?", "who is Flo?"]
        assert [row.get("fallback", False) for row in rows] == [False, True, True] and len(service.requests) == 3
        body = next(body for body in service.requests if "and where?" in body["messages"][0]["content"])
        assert body["messages"] == [{"role": "user", "content": few_shot_prompt(ASKED, [SHOT], FewShotConfig(1))}]
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("some-model", 0.0, 64)
        job.run()
        assert len(service.requests) == 3 and read_jsonl(data["output"]) == rows
        for changes in ({"model": "other"}, {"version": "2"}, {"temperature": 0.5}):
            replace(job, writer=endpoint(service, tmp_path, **changes)).run()
        replace(job, max_new_tokens=8).run()
        assert len(service.requests) == 15


def test_answers_of_an_endpoint_that_were_cut_off_or_refused(data: dict[str, Any], tmp_path: Path) -> None:
    with FakeService(chat(lambda text: "where", finish="length")) as service:
        RewriteFewShot(writer=endpoint(service, tmp_path), **data).run()
        assert read_cut(data["output"]) == {"d_3", "e_1", "f_1"}
    declined = {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": None}}]}
    with FakeService(lambda body: declined) as service:
        RewriteFewShot(writer=endpoint(service, tmp_path), **data).run()
        assert all(row["fallback"] for row in read_jsonl(data["output"]))


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": ["x"]}, {"choices": [{"message": {"content": 3}}]}]
)
def test_an_endpoint_that_answers_something_else(answer: Any, data: dict[str, Any], tmp_path: Path) -> None:
    with FakeService(lambda body: answer) as service:
        with pytest.raises(FineGrainedError, match="an answer without choices"):
            RewriteFewShot(writer=endpoint(service, tmp_path), **data).run()
    assert not Path(data["output"]).exists()
    with pytest.raises(ConfigError, match="temperature: expected at least 0"):
        endpoint(service, tmp_path, temperature=-1.0)


def test_an_interrupted_run_keeps_what_was_answered(data: dict[str, Any], tmp_path: Path) -> None:
    with FakeService(chat(lambda text: "x?")) as service:
        service.fault = lambda number, body: (500,) if "Flo" in json.dumps(body) else None
        writer = endpoint(service, tmp_path)
        with pytest.raises(FineGrainedError, match="given up"):
            RewriteFewShot(writer=replace(writer, remote=replace(writer.remote, concurrency=1)), **data).run()
        service.fault = lambda number, body: None
        before = len(service.requests)
        RewriteFewShot(writer=writer, **data).run()
        assert len(service.requests) == before + 1
