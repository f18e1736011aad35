"""finegrained evaluate's job: policies and output files, the files it writes, and input that does not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from evaluation_toy import WordScorer

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.factworld.make import MakeFactWorld, to_example
from finegrained_rlhf.factworld.oracle import FactWorldOracle
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs, write_outputs
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.inference.evaluate import count_tokens
from finegrained_rlhf.inference.generator import load_policy
from finegrained_rlhf.inference.jobs import Evaluate
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from finegrained_rlhf.rewards import RewardConfig


@pytest.fixture(scope="module")
def examples() -> list[QAExample]:
    world = MakeFactWorld("unused", seed=5, train=0, dev=0, test=3, sft_train=0, sft_dev=0)
    return [to_example(item, answer) for item, answer in world.draw()["test"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, examples: list[QAExample]) -> Path:
    """A run directory as training leaves it."""
    path = tmp_path_factory.mktemp("run")
    tokenizer = build_tokenizer([text for e in examples for text in (e.text, *e.references)])
    build_t5(tokenizer, TinyT5Config(d_model=16, d_ff=32, num_layers=1), seed=2).save_pretrained(path / "policy")
    tokenizer.save_pretrained(path / "policy")
    (path / "config.yaml").write_text("seed: 0\n")
    return path


@pytest.fixture
def data(tmp_path: Path, examples: list[QAExample]) -> str:
    write_examples(tmp_path / "data.json", examples)
    return str(tmp_path / "data.json")


def outputs_file(path: Path, examples: list[QAExample], answers: list[str]) -> str:
    write_outputs(path, [OutputRecord.of(e, [a, "another"]) for e, a in zip(examples, answers, strict=True)])
    return str(path)


def test_a_run_is_answered_measured_and_recorded(
    run: Path, data: str, tmp_path: Path, examples: list[QAExample], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results" / "test.json"
    reward = RewardConfig({"words": WordScorer()}, {"words": 1.0})
    Evaluate(data, str(output), str(run), max_new_tokens=7, batch_size=2, reward=reward, oracle=FactWorldOracle()).run()
    report = read_json(output)
    assert report["examples"] == 3 and report["checkpoint"] == str(run) and report["data"] == data
    answers = load_policy(run, device="cpu").generate([e.text for e in examples], max_new_tokens=7)
    records = read_outputs(report["outputs"])
    assert [record.outputs for record in records] == [tuple(answer) for answer in answers]
    assert [record.references for record in records] == [e.references for e in examples]
    for key in ("rouge_lsum", "mean_tokens", "finished_share", "relevance_error_rate", "factual_error_rate"):
        assert 0 <= report[key], key
    assert report["completeness"] <= 1 and report["reward/words/segments"] >= 0
    assert json.loads((run / "metrics.json").read_text()) == report
    assert f"{report['rouge_lsum']:.4f}" in capsys.readouterr().out


def test_each_question_is_kept_and_together_they_are_the_metrics(run: Path, data: str, tmp_path: Path) -> None:
    output = tmp_path / "test.json"
    reward = RewardConfig({"words": WordScorer()}, {"words": 1.0})
    Evaluate(data, str(output), str(run), max_new_tokens=7, reward=reward, oracle=FactWorldOracle()).run()
    report, rows = read_json(output), read_jsonl(tmp_path / "test.questions.jsonl")
    assert [row["id"] for row in rows] == [record.id for record in read_outputs(report["outputs"])]
    for name, key in (("rouge_lsum", "rouge_lsum"), ("mean_tokens", "tokens"), ("finished_share", "finished")):
        assert report[name] == pytest.approx(sum(row[key] for row in rows) / 3), name
    words = [row["rewards"]["words"] for row in rows]
    assert report["reward/words/raw"] == pytest.approx(sum(found["sum"] for found in words) / 3)
    segments = sum(found["segments"] for found in words)
    assert report["reward/words/segments"] == segments
    assert report["reward/words/error_free_share"] == pytest.approx(
        sum(found["error_free"] for found in words) / max(segments, 1)
    )
    found, of = (sum(row["oracle"]["completeness"][i] for row in rows) for i in (0, 1))
    assert report["completeness"] == pytest.approx(found / of)


def test_the_answers_of_a_run_score_the_same_when_read_back_from_their_file(
    run: Path, data: str, tmp_path: Path
) -> None:
    policy = Evaluate(data, str(tmp_path / "a.json"), str(run), max_new_tokens=7, oracle=FactWorldOracle()).run()
    again = Evaluate(
        data,
        str(tmp_path / "b.json"),
        outputs=str(tmp_path / "a.outputs.jsonl"),
        tokenizer=str(run),
        oracle=FactWorldOracle(),
    ).run()
    shared = set(policy.metrics) & set(again.metrics) - {"mean_tokens"}
    assert {"rouge_lsum", "completeness", "mean_words"} <= shared
    assert {name: policy.metrics[name] for name in shared} == {name: again.metrics[name] for name in shared}
    assert read_json(tmp_path / "b.json")["outputs"] == str(tmp_path / "a.outputs.jsonl")


def test_the_first_output_counts_and_the_oracle_tells_gold_from_nothing(
    data: str, tmp_path: Path, examples: list[QAExample]
) -> None:
    gold = [example.references[0] for example in examples]
    found = {}
    for name, answers in {"gold": gold, "nothing": [""] * 3, "half": [gold[0], "", "Nonsense."]}.items():
        outputs = outputs_file(tmp_path / f"{name}.jsonl", examples, answers)
        job = Evaluate(data, str(tmp_path / f"{name}.json"), outputs=outputs, oracle=FactWorldOracle())
        found[name] = job.run().metrics
    asked = [len(answer.split(". ")) for answer in gold]
    assert found["gold"]["rouge_lsum"] == pytest.approx(1.0)
    rates = ("relevance_error_rate", "factual_error_rate", "completeness", "correct_share")
    assert [found["gold"][rate] for rate in rates] == [0, 0, 1, 1]
    assert [found["nothing"][rate] for rate in rates] == [0, 0, 0, 0]
    # One incoherent sub-sentence beside the gold ones; its sentence's only error is relevance, so it does not count
    # for factuality.
    assert found["half"]["relevance_error_rate"] == pytest.approx(1 / (asked[0] + 1))
    assert found["half"]["factual_error_rate"] == 0
    assert found["half"]["completeness"] == pytest.approx(asked[0] / sum(asked))
    assert "mean_tokens" not in found["gold"]


def test_tokens_of_outputs_are_counted_without_special_tokens(run: Path) -> None:
    assert count_tokens(["question: context", ""], run) == [3, 0]
    with pytest.raises(ModelError, match="no tokenizer here"):
        count_tokens(["x"], run / "nowhere")


def test_a_limit_takes_the_beginning(run: Path, data: str, tmp_path: Path, examples: list[QAExample]) -> None:
    result = Evaluate(data, str(tmp_path / "a.json"), str(run), max_new_tokens=3, limit=2).run()
    assert [row.prompt.id for row in result.responses] == [e.id for e in examples[:2]]
    for answers in (["x", "y", "z"], ["x", "y"]):
        outputs = outputs_file(tmp_path / "o.jsonl", examples[: len(answers)], answers)
        result = Evaluate(data, str(tmp_path / "b.json"), outputs=outputs, limit=2).run()
        assert [row.response for row in result.responses] == ["x", "y"]


def test_a_model_directory_that_is_no_run_gets_no_metrics_file(run: Path, data: str, tmp_path: Path) -> None:
    (run / "metrics.json").unlink(missing_ok=True)
    Evaluate(data, str(tmp_path / "a.json"), str(run / "policy"), max_new_tokens=2, limit=1).run()
    assert not (run / "metrics.json").exists() and not (run / "policy" / "metrics.json").exists()


def test_the_step_is_that_of_the_weights(run: Path, data: str, tmp_path: Path) -> None:
    ours = Path(shutil.copytree(run, tmp_path / "run"))
    write_json(ours / "policy/export.json", {"step": 3, "score": 0.5})
    for checkpoint in (ours, ours / "policy"):
        Evaluate(data, str(tmp_path / "a.json"), str(checkpoint), max_new_tokens=2, limit=1).run()
        assert read_json(tmp_path / "a.json")["step"] == 3


def test_what_is_read_is_not_replaced_by_what_lies_beside_the_metrics(tmp_path: Path) -> None:
    output = str(tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"would be written with .*a\.outputs\.jsonl, which is read"):
        Evaluate(str(tmp_path / "a.outputs.jsonl"), output, "run")
    with pytest.raises(ConfigError, match=r"a\.questions\.jsonl, which is read"):
        Evaluate("data.json", output, outputs=str(tmp_path / "a.questions.jsonl"))
    assert Evaluate("data.json", output, outputs=str(tmp_path / "a.outputs.jsonl"))


def test_outputs_of_other_data_are_refused(data: str, tmp_path: Path, examples: list[QAExample]) -> None:
    output = tmp_path / "a.json"
    few = outputs_file(tmp_path / "few.jsonl", examples[:2], ["x", "y"])
    with pytest.raises(DataError, match=f"few.jsonl.*no output for 1 of the 3 examples.*{examples[2].id!r}"):
        Evaluate(data, str(output), outputs=few).run()
    write_examples(tmp_path / "short.json", examples[:2])
    more = outputs_file(tmp_path / "more.jsonl", examples, ["x", "y", "z"])
    with pytest.raises(DataError, match=f"record {examples[2].id}, field id: no example of the data has this id"):
        Evaluate(str(tmp_path / "short.json"), str(output), outputs=more).run()
    assert not output.exists()


def test_a_stranger_may_leave_out_ids(data: str, tmp_path: Path, examples: list[QAExample]) -> None:
    """An id that is not given follows from question and passages, in data and outputs alike."""
    rows: list[dict[str, Any]] = [
        {
            "question": e.question,
            "passages": [[p.title, *p.sentences] for p in e.passages],
            "outputs": [e.references[0]],
        }
        for e in examples
    ]
    write_jsonl(tmp_path / "strange.jsonl", rows)
    content = [{k: v for k, v in row.items() if k != "id"} for row in json.loads(Path(data).read_text())]
    (tmp_path / "bare.json").write_text(json.dumps(content))
    job = Evaluate(str(tmp_path / "bare.json"), str(tmp_path / "a.json"), outputs=str(tmp_path / "strange.jsonl"))
    assert job.run().metrics["rouge_lsum"] == pytest.approx(1.0)


def test_broken_input_is_one_clear_error(run: Path, data: str, tmp_path: Path) -> None:
    output = str(tmp_path / "a.json")
    with pytest.raises(ModelError, match="no model here"):
        Evaluate(data, output, str(tmp_path)).run()
    with pytest.raises(DataError, match="no such file"):
        Evaluate(str(tmp_path / "absent.json"), output, str(run)).run()
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="empty.jsonl: holds no records"):
        Evaluate(data, output, outputs=str(tmp_path / "empty.jsonl")).run()
    with pytest.raises(ConfigError, match="checkpoint=RUN or outputs=FILE"):
        Evaluate(data, output)
    with pytest.raises(ConfigError, match="one of them"):
        Evaluate(data, output, "a", "b")
    with pytest.raises(ConfigError, match="counts"):
        Evaluate(data, output, "a", oracle=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="its own"):
        Evaluate(data, output, "a", tokenizer="b")
    assert not Path(output).exists()


def test_the_oracle_refuses_a_world_that_is_not_its_own(tmp_path: Path) -> None:
    example = QAExample("odd", "Why is the sky blue?", "why", ("because",), ())
    write_examples(tmp_path / "odd.json", [example])
    outputs = outputs_file(tmp_path / "o.jsonl", [example], ["x"])
    with pytest.raises(DataError, match="record odd"):
        Evaluate(str(tmp_path / "odd.json"), str(tmp_path / "a.json"), outputs=outputs, oracle=FactWorldOracle()).run()


def test_an_evaluation_by_other_rewards_keeps_the_oracles_rates(run: Path, data: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("metrics.json")))
    (run / "policy" / "export.json").write_text('{"step": 4, "score": 1.0}')
    common = {"max_new_tokens": 7, "batch_size": 2}
    first = RewardConfig({"words": WordScorer()}, {"words": 1.0})
    Evaluate(data, str(tmp_path / "a.json"), str(run), reward=first, oracle=FactWorldOracle(), **common).run()
    truth = read_json(run / "metrics.json")
    assert truth["step"] == 4 and "factual_error_rate" in truth
    second = RewardConfig({"other": WordScorer()}, {"other": 1.0})
    Evaluate(data, str(tmp_path / "b.json"), str(run), reward=second, **common).run()
    both = read_json(run / "metrics.json")
    assert both["factual_error_rate"] == truth["factual_error_rate"]
    assert "reward/other/segments" in both and "reward/words/segments" not in both and "earlier" not in both
    Evaluate(data, str(tmp_path / "c.json"), str(run), limit=2, **common).run()
    other = read_json(run / "metrics.json")
    assert other["examples"] == 2 and "factual_error_rate" not in other
    assert other["earlier"] == [both]
