"""`finegrained init` and `finegrained try`: what files are taken for, what is refused, what is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from five_strangers import STRANGERS, tiny_models
from hydra import initialize_config_dir
from refusals import quick_hydra, tree  # noqa: F401

from finegrained_rlhf.core.errors import FineGrainedError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.launch.configurations import conf_directory
from finegrained_rlhf.launch.init import Init, Try, jobs
from finegrained_rlhf.launch.init.columns import layout_of, read_rows
from finegrained_rlhf.launch.init.records import Understood, divided, understand
from finegrained_rlhf.launch.init.rehearsal import Rehearsal, _judge_policy, _judge_reward_model, duration
from finegrained_rlhf.launch.plain_words import with_long_keys
from finegrained_rlhf.rewards import FunctionScorer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hydra() -> Iterator[None]:
    with initialize_config_dir(str(conf_directory()), version_base=None):
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(rows: list[Mapping[str, Any]], **given: Any) -> Understood:
    layout = layout_of(rows, True, given.get("fields", {}), given.get("good", ()), "file")
    return understand(rows, layout, "file")


def ten(**columns: Any) -> list[Mapping[str, Any]]:
    """Ten rows with a question each; a column is a value for all rows, or a function of the row's number."""
    rows = [{"question": f"What is {n}?"} for n in range(10)]
    return [{**row, **{k: v(n) if callable(v) else v for k, v in columns.items()}} for n, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("stranger", "form", "prompts", "marks", "left_out"),
    [
        ("sentence_labels", "sentences", 30, {"rude"}, {"without a prompt": 1}),
        ("character_spans", "spans", 30, {"rude"}, {}),
        ("preferences", "pairs", 30, set(), {}),
        ("thumbs", "thumbs", 80, {"Bad"}, {"without a mark": 2}),
        ("chats", "spans", 30, {"rude"}, {}),
    ],
)
def test_five_forms_are_known_by_their_columns(
    tmp_path: Path, stranger: str, form: str, prompts: int, marks: set[str], left_out: dict[str, int]
) -> None:
    file = STRANGERS[stranger](tmp_path, 80 if stranger == "thumbs" else 30)  # type: ignore[call-arg]
    rows = read_rows(file)
    layout = layout_of(rows, True, {}, (), file)
    found = understand(rows, layout, file)
    assert (layout.form, len(found.prompts), set(found.types), dict(found.left_out)) == (form, prompts, marks, left_out)
    train, dev = divided(found, 0)
    assert not train & dev and train | dev == set(found.prompts) and len(dev) == max(prompts // 10, prompts // 5)
    if marks:
        faulted = [bool(r.feedback and r.feedback.errors) for one, r in found.feedback if one in dev]
        assert 0 < sum(faulted) < len(faulted)


def test_what_a_mark_and_a_preference_say() -> None:
    quoted = read(ten(answer="It is one. It is two.", spans=lambda n: [{"quote": "It is one.", "type": "A"}] * (n % 2)))
    errors = [[(e.start, e.end, e.error_type) for e in r.feedback.errors] for _, r in quoted.feedback if r.feedback]
    assert errors[:2] == [[], [(0, 10, "A")]]
    assert list(quoted.prompts.values())[:2] == [["It is one. It is two."], []]
    lists = read(ten(sentences=["One.", "Two."], labels=lambda n: [0, n % 2], answer="Two. One. Two."), good=[0])
    assert [(e.start, e.end) for e in lists.feedback[1][1].feedback.errors] == [(10, 14)]  # type: ignore[union-attr]
    winners = ["response_0", "1", "tie", None, "a", "b", 0, 1, "A", "B"]
    pairs = read(ten(response_0="x", response_1="y", winner=lambda n: winners[n]))
    assert [r.preferences for _, r in pairs.feedback] == [(1,), (2,), (0,), (1,), (2,), (1,), (2,), (1,), (2,)]
    assert pairs.left_out == {"without a mark": 1}
    talks = [
        {
            "chosen": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "Yes."}],
            "rejected": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "No."}],
        }
        for n in range(10)
    ]
    one = read(talks).feedback[3][1]
    assert (one.question, one.predictions, one.preferences) == ("3?", ("Yes.", "No."), (1,))
    faults = read(ten(claim="It is.", hallucinated=lambda n: bool(n % 2)))
    assert faults.types == {"Wrong": 5}
    cell = read(ten(answer="It is.", spans=lambda n: [[0, 2, "A"]] if n else []))
    assert cell.types == {"A": 9}


REFUSED: list[tuple[list[Mapping[str, Any]], dict[str, Any], str]] = [
    (ten(answer="x"), {}, "no column is known to hold marks: spans, labels of sentences, pairs or thumbs"),
    ([{"answer": "x", "thumb": "up"}] * 10, {}, r"no column is known to hold prompts \(fields=\{prompt: COLUMN\}\)"),
    (ten(answer="x", thumb="up"), {"fields": {"answer": "reply"}}, "fields.answer: no column 'reply'; it has question"),
    (ten(answer="x", thumb="up"), {"fields": {"reply": "answer"}}, "fields.reply: expected a role of a column: mess"),
    (ten(answer="x", rating=lambda n: n % 5 + 1), {}, r"rating has the values .*good=\[VALUE,…\]"),
    (ten(answer="x", rating=lambda n: n % 5 + 1), {"good": [6]}, "good: '6' is no value of rating"),
    (ten(sentence="x", label=lambda n: n % 2), {}, "label has the values '0', '1': which mean that nothing is wrong"),
    (ten(answer="x", thumb="up"), {}, "which mean that nothing is wrong"),
    (ten(answer="xy", spans=[{"start": 0, "end": 3, "label": "A"}]), {}, "record 0, field .*ends after prediction 1"),
    (
        ten(answer="xy", spans=[{"start": 0, "end": 1, "label": "A", "text": "y"}]),
        {},
        "at 0:1 of the answer stands 'x'",
    ),
    (ten(answer="xyxy", spans=[{"quote": "xy", "label": "A"}]), {}, "'xy' stand 2 times in the answer, expected once"),
    (ten(answer="xy", spans=[{"start": 0, "end": 1}]), {}, r"field spans\[0\]: expected a label, got None"),
    (ten(answer="x", sentence="y", label=lambda n: "ok" if n % 2 else "rude"), {}, "'y' does not stand in the answer"),
    (ten(answer="x", spans=[{"start": 0, "end": 1, "label": "A"}])[:5], {}, "at least 10 different prompts, got 5"),
    (ten(answer="x", spans=[]), {}, "no mark among 10 answers"),
    (
        ten(response_a="x", response_b="y", winner="c"),
        {},
        "field winner: expected 'response a', 'response b', a letter",
    ),
    (ten(sentences=["x"], labels=["ok", "rude"]), {}, "1 sentences and 2 labels"),
]


@pytest.mark.parametrize(("rows", "given", "message"), REFUSED)
def test_what_cannot_be_known_or_does_not_fit_is_one_line(
    rows: list[Mapping[str, Any]], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(FineGrainedError, match=message) as raised:
        read(rows, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "question,label\nx,y,z\n", "record 0: has another number of cells than the first line"),
        ("b.csv", "question,label\n", "expected a list of records"),
        ("c.json", '{"a": [], "b": []}', "expected a list of records"),
        ("d.json", "[1]", "record 0: expected an object, got int"),
        ("e.parquet", "text", "not a readable parquet file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FineGrainedError, match=message):
        read_rows(tmp_path / name)


def test_what_is_written_is_composed_and_checked(
    here: Path, models: Path, hydra: None, capsys: pytest.CaptureFixture[str]
) -> None:
    data = STRANGERS["character_spans"](here)
    shared = {"model": str(models / "longformer"), "policy_path": str(models / "llama"), "measure": False}
    job = Init(name="mails", data=str(data), reward_from="marks", **shared)  # type: ignore[arg-type]
    job.run()
    printed = capsys.readouterr().out
    assert "120 rows with marked spans" in printed and "divided by prompt: 100 to train on, 20" in printed
    page = Path("mails/README.md").read_text(encoding="utf-8")
    assert page.count("--config-dir mails/conf") == 3 and "finegrained report run=mails/runs/ppo" in page
    kept = [read_feedback(f"mails/data/feedback_{part}.json", None) for part in ("train", "dev")]
    assert [len(records) for records in kept] == [100, 20]
    questions = [{record.question for record in records} for records in kept]
    assert not questions[0] & questions[1]
    prompts = read_jsonl("mails/data/prompts_train.jsonl")
    assert {row["question"] for row in prompts} == questions[0]
    assert prompts[0]["text"].startswith("question: ") and prompts[0]["passages"] == [
        ["", "Be kind."],
        ["", "Lamps last."],
    ]
    answers = read_jsonl("mails/data/answers_train.jsonl")
    assert len(answers) == sum(not record.feedback.errors for record in kept[0] if record.feedback)
    before = tree(here)
    with pytest.raises(FineGrainedError, match="name: mails exists, and nothing is overwritten"):
        job.run()
    assert tree(here) == before
    Path("mails/data/prompts_dev.jsonl").unlink()
    with pytest.raises(FineGrainedError, match="my_ppo: .*prompts_dev.jsonl"):
        Try("mails").run()


def test_a_reward_that_is_given_is_configuration_and_a_function_is_timed(
    here: Path, models: Path, hydra: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Rehearsal({"my_ppo": [{"time/total_s": 2.0}]})  # of four prompts
    monkeypatch.setattr(jobs, "rehearse", lambda project, scratch: steps)
    Path("prompts.json").write_text(json.dumps(ten()))
    Path("my_rule.py").write_text("def polite(prompt, response):\n    return 1.0 * ('please' in response)\n")
    sys.path.insert(0, str(here))
    shared = {"data": "prompts.json", "policy_path": str(models / "llama")}
    try:
        Init(name="rule", reward_from="function", function="my_rule.polite", **shared).run()  # type: ignore[arg-type]
        assert "my_ppo: 50 steps of 4.00 s on this machine, about 3 min" in capsys.readouterr().out
        with pytest.raises(FineGrainedError, match="my_rule has no rude"):
            Init(name="no", reward_from="function", function="my_rule.rude", **shared).run()  # type: ignore[arg-type]
    finally:
        sys.path.remove(str(here))
    Init(name="judged", reward_from="judge", judge_name="some-model", **shared).run()  # type: ignore[arg-type]
    assert "judged/ is made" in (out := capsys.readouterr().out) and "on this machine" not in out
    assert not Path("rule/conf/experiment/my_reward_model.yaml").exists() and not Path("no").exists()
    assert not Path("rule/data/feedback_train.json").exists() and len(read_jsonl("judged/data/prompts_dev.jsonl")) == 2


def test_nothing_is_made_where_a_model_is_wrong(here: Path, models: Path, hydra: None) -> None:
    data = STRANGERS["chats"](here)
    before = tree(here)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model": str(here)}, "no model here"),
        (
            {"model": str(models / "longformer"), "policy_path": str(models / "bert")},
            "policy: .*bert generates no text",
        ),
        ({"model": str(models / "t5")}, "model: .*t5: expected an encoder or a decoder-only model"),
    ]
    for given, message in wrong:
        with pytest.raises(FineGrainedError, match=message):
            Init(name="p", data=str(data), reward_from="marks", measure=False, **given).run()
        assert tree(here) == before


def test_a_terminal_is_asked_and_a_script_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FineGrainedError, match=r"give name=…, data=…, model=…  \(--help"):
        Init(reward_from="marks").run()
    replies = iter(["p", "no.json", "marks", "m", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: next(replies))
    with pytest.raises(FineGrainedError, match="no.json: no such file"):
        Init().run()
    assert with_long_keys(["reward=marks", "name=a=b", "--help"], {"reward": "reward_from"}) == [
        "reward_from=marks",
        "name=a=b",
        "--help",
    ]


def test_a_function_scores_whole_responses() -> None:
    scores = FunctionScorer(lambda prompt, response: len(prompt) + len(response)).score(
        [Prompt("a", "Hi", (1,)), Prompt("b", "Hi", (1,))], ["You", " "]
    )
    assert (scores.spans, scores.values, scores.whole_response) == ([((0, 3),), ()], [(5.0,), ()], True)


def test_what_a_rehearsal_finds(tmp_path: Path) -> None:
    said: list[str] = []
    sound = Rehearsal({"my_reward_model": [{"loss": 0.7, "time/step_s": 2.0}, {"loss": 0.6, "time/step_s": 1.0}]})
    _judge_reward_model(sound, said.append)
    assert said == ["reward model: loss 0.700 → 0.600 in 2 steps on 10 records"] and not sound.problems
    assert sound.seconds("my_reward_model", 16) == 1.6 and sound.seconds("my_ppo", 16) is None
    still = Rehearsal({"my_reward_model": [{"loss": 0.7}, {"loss": 0.7}]})
    _judge_reward_model(still, said.append)
    assert "does not fall" in still.problems[0]
    (tmp_path / "my_ppo/samples").mkdir(parents=True)
    (tmp_path / "my_ppo/samples/step_2.jsonl").write_text('{"response": "Yes.", "segments": [{"raw": -1}]}\n')
    shared = {"reward/total": 0.5, "response_length": 9.0, "truncated": 0.5}
    for kl, same, problem in ((0.0, 1.0, "earn the same"), (0.0, 0.5, "does not move"), (0.1, 0.5, "")):
        done = Rehearsal({"my_ppo": [{**shared, "kl": kl, "groups/no_advantage": same}] * 2})
        _judge_policy(done, tmp_path, said.append)
        assert [problem in line for line in done.problems] == [True] * bool(problem)
    assert said[-1] == "one of them: 'Yes.', paid -1.00"
    early = Rehearsal({**sound.metrics, "my_ppo": [{**shared, "kl": 0.0, "groups/no_advantage": 1.0}] * 2})
    _judge_policy(early, tmp_path, said.append)
    assert "8 steps" in said[-1] and not early.problems
    assert [duration(s) for s in (9, 900, 9000)] == ["about 9 s", "about 15 min", "about 2.5 h"]
