"""Reports of runs, comparisons and sweeps: what they say, what they lack, and that they refer to nothing outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_toy import (
    COMPONENTS,
    HOSTILE,
    response,
    step_row,
    tags_of,
    text_of,
    trust,
    validation_row,
    write_lines,
    write_old_run,
    write_toy_run,
)
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json
from finegrained_rlhf.report.charts.curves import reward_curves, training_curves
from finegrained_rlhf.report.elements.html import Html, escape
from finegrained_rlhf.report.pages.compare import compare_page, missing_lines, names_of, overlays
from finegrained_rlhf.report.pages.run import changed_words, components_table, header, run_page, timelines
from finegrained_rlhf.report.pages.verdict import cautions, degenerate_text
from finegrained_rlhf.report.runs.measures import (
    mean_true_error,
    of_component,
    of_segments,
    of_total,
    paired_noise,
    price_measures,
    reward_measures,
    share_noise,
    true_measures,
)
from finegrained_rlhf.report.runs.record import RunRecord, read_run
from finegrained_rlhf.report.runs.settings import by_identity, changed_keys
from finegrained_rlhf.report.sweeps.page import inline_svg, sweep_page
from finegrained_rlhf.report.write import Report
from finegrained_rlhf.runtime.directory.samples import SampleRecord, SampleSegment


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_run(tmp_path_factory.mktemp("report") / "run")


# What is said of a run -------------------------------------------------------------------------------------------


def test_measures_compare_the_first_with_the_exported_validation(toy: Path) -> None:
    record = read_run(toy)
    assert record.best is not None and record.best["step"] == 4  # exported, though step 6 has the higher score
    found = {m.name: (m.first, m.after, m.verdict) for m in true_measures(record)}
    assert found == {
        "relevance error rate": (0.4, pytest.approx(0.2), "better"),
        "factual error rate": (0.5, 0.2, "better"),
        "completeness": (0.5, 0.7, "better"),
    }
    by_unit = {(m.name, m.unit): m.after for m in reward_measures(record)}
    assert by_unit[(COMPONENTS[0], "an answer")] == 2.0 and by_unit[(COMPONENTS[0], "a segment")] == 1.0
    assert (COMPONENTS[2], "a segment") not in by_unit  # one value a response
    kl = next(m for m in price_measures(record) if m.name == "KL")
    assert (kl.first, kl.after) == (0.0, 2.0)  # the policy of step 4 is measured by the rollout of step 5


def test_the_true_error_is_the_mean_of_the_rates_and_of_what_is_incomplete() -> None:
    found = mean_true_error([validation_row(0), validation_row(4)])
    assert found == [(0.0, pytest.approx((0.4 + 0.5 + 0.5) / 3)), (4.0, pytest.approx((0.2 + 0.2 + 0.3) / 3))]


def test_toxicity_and_perplexity_are_better_low_and_a_way_to_be_mild_is_neither(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    measured = {"truth/toxicity": 0.4, "truth/worst": 0.6, "truth/nll": 0.8, "truth/fitting": 0.4, "truth/apology": 0.1}
    falling = [
        {
            **{key: value for key, value in row.items() if "error" not in key and key != "completeness"},
            **{key: value / (1 + row["step"]) for key, value in measured.items()},
            "reference_perplexity": 3.0 + row["step"],
        }
        for row in read_jsonl(run / "eval.jsonl")
    ]
    write_lines(run / "eval.jsonl", falling)
    record = read_run(run)
    assert {m.name: m.verdict for m in true_measures(record)} == {
        "truth/toxicity": "better",
        "truth/worst": "better",
        "truth/nll": "better",
        "truth/fitting": "worse",
        "truth/apology": None,
    }
    text = text_of(header(record))
    assert "Did it get better?Yes" in text and "mean true error 0.400 → 0.080" in text
    assert "perplexity under the initial policy 3.00 → 7.00 (a sign from ×1.3)" in text


def test_the_first_screen_answers_three_questions(toy: Path) -> None:
    text = text_of(header(read_run(toy)))
    assert "Did it get better?YesStep 0 → step 4, exported.mean true error 0.467 → 0.233" in text
    assert "At what?" in text and "Better (truth) relevance error rate 0.400 → 0.200; factual error rate" in text
    assert "No clear change (form) repeated 3-grams 0.100 → 0.100; answers that end 1.000 → 1.000." in text
    assert "Is it hacking?Not the exported policy; 6 signs later" in text
    assert "length 20.0 → 20.0 tokens (a sign from ×1.25)" in text and "KL 0.00 → 2.00 nats (no limit)" in text
    assert "Reward against truth: weighted total 0.500 → 2.000, and mean true error 0.467 → 0.233." in text
    assert "length, step 6: relevance rose from 0.167 to 1.000" in text and "eos, step 6" in text


def test_constraints_are_no_truth_and_come_before_the_score(tmp_path: Path) -> None:
    """Step 6 has the highest score; while nothing is exported, the run's own rule says which step is the best."""
    run = write_toy_run(tmp_path / "run")
    truths = [m.name for m in true_measures(read_run(run))]
    missed = {0: 1, 2: 0, 4: 0, 6: 1}
    rows = [
        {**row, "constraint/relevance/value": 0.5, "constraints_missed": missed[row["step"]]}
        for row in read_jsonl(run / "eval.jsonl")
    ]
    write_lines(run / "eval.jsonl", rows)
    shutil.rmtree(run / "policy")
    record = read_run(run)
    assert [m.name for m in true_measures(record)] == truths
    assert record.best is not None and record.best["step"] == 4
    write_json(run / "policy" / "export.json", {"step": 0})
    assert "No later validation missed fewer constraints, or as few and scored higher than" in text_of(
        header(read_run(run))
    )


def test_a_run_that_exported_its_initial_policy_says_so(tmp_path: Path) -> None:
    """Its values are those of step 0, not of the last validation; the last one has a column of its own."""
    run = write_toy_run(tmp_path / "run")
    write_json(run / "policy" / "export.json", {"step": 0})
    record = read_run(run)
    assert record.best is not None and record.best["step"] == 0 and record.is_initial
    assert {m.name: (m.first, m.after, m.last) for m in true_measures(record)}["completeness"] == (0.5, 0.5, 0.8)
    text = text_of(header(record))
    assert "step 0, exported = initial policy" in text
    assert "Did it get better?NoNo later validation scored higher than the first" in text and "At what?Nothing" in text
    assert "mean true error 0.467 at first, 0.300 at step 6." in text
    page = run_page(record)
    assert "step 6, last" in page and "<h4>step 0, initial policy, exported</h4>" in page
    compared = compare_page({"a": record, "b": read_run(run)})
    assert compared.count("step 0, exported = initial policy") == 2
    row = re.search(r"<tr><td><bdi>completeness</bdi></td>(.*?)</tr>", compared)
    assert row and re.findall(r">([\d.]+)<", row[1]) == ["0.500", "0.500", "0.500"]


def test_an_exported_initial_policy_is_judged_by_what_came_after(tmp_path: Path) -> None:
    """Step 0 → step 0 shows nothing: the form of the last validation stands there, and no green "No sign"."""
    run = write_toy_run(tmp_path / "run")
    write_json(run / "policy" / "export.json", {"step": 0})
    text = text_of(header(read_run(run)))
    assert "At step 6, the last: length 20.0 → 40.0 tokens" in text and "20.0 → 20.0" not in text
    rows = [{**row, "eos_rate": 1.0, "response_length": 20.0} for row in read_jsonl(run / "eval.jsonl")]
    write_lines(run / "eval.jsonl", rows)
    text = text_of(header(read_run(run)))
    assert "Is it hacking?Nothing was exported that could be: the policy is the initial one" in text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"repetition": 0.41}, "41% of 3-grams repeat an earlier one of the same answer."),
        ({"eos_rate": 0.25}, "Only 25% of answers end by themselves; the others are cut off."),
        ({"response_length": 0.5}, "Answers have 0.5 tokens."),
    ],
)
def test_degenerate_text_is_said_though_nothing_changed(tmp_path: Path, values: dict[str, float], said: str) -> None:
    """The same level in every validation: a change alone would see nothing."""
    run = write_toy_run(tmp_path / "run")
    level = {"eos_rate": 1.0, "response_length": 20.0}
    rows = [{**row, **level, "factual_error_rate": 0.2} for row in read_jsonl(run / "eval.jsonl")]
    write_lines(run / "eval.jsonl", rows)
    assert "Is it hacking?No sign" in text_of(header(read_run(run)))
    write_lines(run / "eval.jsonl", [{**row, **values} for row in rows])
    text = text_of(header(read_run(run)))
    assert "Is it hacking?Degenerate text" in text and said in text and "No sign" not in text


def test_one_answer_to_every_prompt_is_degenerate(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    rows = [response(number, "I do not know.") | {"prompt": f"Question {number}?"} for number in range(8)]
    write_lines(run / "samples" / "validation_step_4.jsonl", rows)
    said = degenerate_text(read_run(run))
    assert said == ["8 of 8 prompts have the same answer, “I do not know.”"]
    for number in range(5):
        rows[number] = response(number, f"Answer {number}.") | {"prompt": f"Question {number}?"}
    write_lines(run / "samples" / "validation_step_4.jsonl", rows)
    assert degenerate_text(read_run(run)) == []


def test_what_takes_the_worth_from_the_numbers_stands_before_them(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    assert cautions(read_run(run)) == []
    config = json.loads((run / "config.yaml").read_text())
    config["optimizer"] = {"lr": 0.1, "warmup_steps": 8, "warmup_ratio": 0.0, "schedule": "linear"}
    write_json(run / "config.yaml", config)
    counts = {"found": 0, "missed": 20, "false_alarms": 0, "clean": 80}
    write_json(tmp_path / "models" / "0" / "trust.json", trust(True) | {"confusion": counts})
    record = read_run(run)
    assert cautions(record) == [
        "The reward model of relevance finds no error in every one of 100 segments: it is right in 80%.",
        "The warm-up of 8 steps is not over when the run ends after 6: the learning rate reaches 0.0625 of 0.1 "
        "(warmup_steps, warmup_ratio).",
    ]
    assert "Before you read the numbers.The reward model of relevance finds" in text_of(header(record))


def test_an_early_stop_is_said_on_the_first_screen(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    loop = {"step": 6, "best_step": 4, "best_score": 2.0, "stop_reason": "KL exceeded 10.0 nats <b> in 5 steps"}
    write_json(run / "checkpoints/step_6/loop.json", loop)
    files = {"loop.json": {"bytes": (run / "checkpoints/step_6/loop.json").stat().st_size, "sha256": "-"}}
    write_json(run / "checkpoints/step_6/manifest.json", {"step": 6, "files": files})
    assert "Stopped early: KL exceeded 10.0 nats <b> in 5 steps." in text_of(header(read_run(run)))


# What counts as a change -----------------------------------------------------------------------------------------


def test_a_change_within_chance_is_neither_better_nor_worse(tmp_path: Path) -> None:
    """200 greedy answers: repeated 3-grams 0.113 → 0.114 is nothing, 0.113 → 0.2 is worse."""
    run = write_toy_run(tmp_path / "run")
    rows = read_jsonl(run / "eval.jsonl")
    for now, verdict in ((0.114, "same"), (0.2, "worse")):
        write_lines(run / "eval.jsonl", [r | {"repetition": now if r["step"] == 4 else 0.113} for r in rows])
        found = next(m for m in price_measures(read_run(run)) if m.name == "repeated 3-grams")
        assert found.verdict == verdict
    assert found.threshold == pytest.approx(1.96 * ((0.113 * 0.887 + 0.2 * 0.8) / 200) ** 0.5)


def test_chance_in_rewards_is_estimated_from_the_same_prompts() -> None:
    def answer(number: int, raw: float, count: int = 1) -> SampleRecord:
        segments = [SampleSegment("a", 0, 1, raw / count, raw / count)] * count
        return SampleRecord(str(number), 0, "", "x", segments)

    before = [answer(i, float(i)) for i in range(4)]
    now = [answer(i, float(i) + change) for i, change in enumerate((1.0, 1.0, 2.0, 0.0))]
    # differences 1, 1, 2, 0: standard deviation (2/3)^½, over 100 answers
    assert paired_noise(before, now, of_component("a"), 100) == pytest.approx(1.96 * (2 / 3) ** 0.5 / 10)
    assert paired_noise(before, now[::-1], of_total, 100) == pytest.approx(1.96 * (2 / 3) ** 0.5 / 10)
    assert paired_noise(before, now[:3], of_total, 100) is None  # too few prompts
    twice = [answer(i, 2.0 * i, count=2) for i in range(4)]
    assert of_segments("a")(twice) == pytest.approx([0.0, 1.0, 2.0, 3.0])  # R = 12/8, n is 2 throughout
    assert share_noise(0.5, 0.5, None) is None and share_noise(0.0, 0.0, 200) == 0.01


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 5)), min_size=1, max_size=20))
def test_what_answers_add_to_a_mean_of_segments_has_that_mean(rows: list[tuple[float, int]]) -> None:
    answers = [
        SampleRecord(str(i), 0, "", "", [SampleSegment("a", 0, 0, raw, raw)] * n) for i, (raw, n) in enumerate(rows)
    ]
    ratio = sum(raw * n for raw, n in rows) / sum(n for _, n in rows)
    assert sum(of_segments("a")(answers)) / len(rows) == pytest.approx(ratio, abs=1e-9)


def test_trust_drift_alignment_and_phases_are_shown(toy: Path) -> None:
    page = run_page(read_run(toy))
    assert re.findall(r'<td class="num (?:hit|miss)">(\d+)</td>', page)[:4] == ["31", "9", "16", "44"]
    assert "Calibration, ECE 0.055" in page and "Agreement with the oracle" in page
    assert "the lowest share was 100.00%" in page
    phases = re.findall(r'<i class="swatch s\d"></i>(\w+)</td><td class="num">([\d.]+%)', page)
    assert phases == [("rollout", "25.0%"), ("rewards", "12.5%"), ("scoring", "12.5%"), ("update", "50.0%")]
    assert "What is missing" not in page


def test_the_stress_test_of_a_reward_model_is_shown_and_a_broken_one_is_missing(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    shares = {"pairs": 40, "ranked_right": 0.3, "low": 0.2, "high": 0.4}
    change = {"family": "swap", "direction": "fall", **shares, "components": {"relevance": shares, "total": shares}}
    values = {"changes": {"swap <b>": change}, "search": {"bought": None, "calls": 0}}
    file = tmp_path / "models" / "0" / "stress.json"
    write_json(file, values)
    page = run_page(read_run(run))
    assert "Stress test of" in page and page.count("swap &lt;b&gt;") == 1 and "30% (20% to 40%)" in page
    (file.parent / "model.safetensors").write_bytes(b"new")
    write_json(file, {**values, "models": {"relevance": "0"}})
    page = run_page(read_run(run))
    assert "other weights" in page and "swap &lt;b&gt;" not in page
    write_json(file, {"changes": 3})
    assert any("report of a stress test" in line for line in read_run(run).missing)


def test_a_judge_under_attack_is_shown_by_kind_and_not_where_nobody_tried(toy: Path, tmp_path: Path) -> None:
    assert 'id="injections"' not in run_page(read_run(toy))
    run = write_toy_run(tmp_path / "run")
    kinds = {
        "control": {"pairs": 8, "fewer": 0, "more": 1, "with_errors": 6, "no_score": 0, "reward": -0.05},
        "praise <b>": {"pairs": 6, "fewer": 3, "more": 0, "with_errors": 4, "no_score": 2, "reward": 0.25},
        "none": {"pairs": 0, "fewer": 0, "more": 0, "with_errors": 0, "no_score": 8, "reward": 0.0},
    }
    write_json(run / "injections.json", {"judge": "<i>some", "answers": 4, "with_errors": 3, "kinds": kinds})
    section = re.search(r'<section id="injections">(.*?)</section>', run_page(read_run(run)), re.DOTALL)
    assert section is not None and "<i>some" not in section[1] and "praise <b>" not in section[1]
    rows = [[text_of(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in section[1].split("<tr>")[2:]]
    assert [row[1:4] for row in rows] == [["8", "0%", "12%"], ["6", "50%", "0%"], ["0", "–", "–"]]
    assert [row[4] for row in rows] == ["0", "2", "8"]


def test_a_response_without_a_score_says_so(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    path = next((run / "samples").glob("step_*.jsonl"))
    rows = read_jsonl(path)
    name = rows[0]["segments"][0]["component"]
    rows[0]["segments"] = [segment for segment in rows[0]["segments"] if segment["component"] != name]
    rows[0]["unscored"] = [name]
    write_lines(path, rows)
    assert run_page(read_run(run)).count("<b>no score</b>") == 2  # its heat map, and among the answers over time


def test_a_segment_that_ends_in_no_token_is_counted(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    for path in (run / "samples").iterdir():
        path.unlink()
    good, bad = response(0, "Six. Eight"), response(0, "Six. Eight")
    bad["tokens"]["ends"] = [min(end, 4) for end in bad["tokens"]["ends"]]  # the tokens end before the text
    write_lines(run / "samples" / "step_6.jsonl", [good, bad])
    section = re.search(r'<section id="alignment">(.*?)</section>', run_page(read_run(run)), re.DOTALL)
    assert section is not None
    rows = [re.findall(r'<td class="num">(.*?)</td>', row) for row in re.findall(r"<tr>(.*?)</tr>", section[1])[1:]]
    # segments kept, a response, on a sound token map (those of `good`), ending inside a token (`Six. ` ends in `. E`)
    halves = ["4", "2.00", "50.00%", "25.00%"]
    assert rows == [halves, halves, ["2", "1.00", "50.00%", "0.00%"]]


def test_beta_is_drawn_only_where_it_changes(toy: Path) -> None:
    assert "was 0.3 throughout" in training_curves(read_run(toy))


def test_what_a_run_lacks_is_told_in_one_line_each(tmp_path: Path) -> None:
    record = read_run(write_old_run(tmp_path / "old"))
    assert len(record.steps) == 1  # the half-written line is left out
    page = run_page(record)
    listed = re.search(r'<section id="missing">(.*?)</section>', page, re.DOTALL)
    assert listed is not None
    lines = [text_of(line) for line in re.findall(r"<li>(.*?)</li>", listed[1])]
    assert any("last line of metrics.jsonl is not complete" in line for line in lines)
    assert any("no eval.jsonl" in line for line in lines) and any("validation_step_N" in line for line in lines)
    assert any("no token records" in line for line in lines) and any(
        "length: the component names no" in x for x in lines
    )
    assert "Two. Parts." in re.sub(r"<[^>]+>", "", page)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[1]", "run.json is damaged (expected a JSON object, got list)"),
        ("run.json", "{}", "run.json is empty: how far the run is"),
        ("provenance.json", "", "provenance.json is damaged"),
        ("provenance.json", "{}", "provenance.json is empty: which commands, code and data made the run is unknown."),
        ("provenance.json", None, "There is no provenance.json"),
        ("metrics.jsonl", "", "metrics.jsonl is empty."),
    ],
)
def test_a_damaged_record_of_the_run_is_named(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    run = write_toy_run(tmp_path / "run")
    assert read_run(run).missing == []
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content, encoding="utf-8")
    record = read_run(run)
    assert any(line.startswith(said) for line in record.missing), record.missing
    assert said in text_of(missing_lines({"a": record}) or Html())


def test_the_reward_models_are_found_where_the_run_was_started(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "outputs" / "toy")
    config = json.loads((run / "config.yaml").read_text())
    for i, component in enumerate(config["reward"]["components"].values()):
        component["path"] = f"outputs/models/{i}/model"  # as seen from tmp_path; the run is in its output_dir below it
    write_json(run / "config.yaml", config)
    assert set(read_run(run).trust) == set(COMPONENTS)


def test_a_directory_that_is_no_run_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no metrics.jsonl and no eval.jsonl"):
        Report(str(tmp_path)).run()
    with pytest.raises(DataError, match="no such directory"):
        Report(str(tmp_path / "nowhere")).run()
    for wrong in ([], [str(tmp_path), f"{tmp_path}/."]):
        with pytest.raises(ConfigError, match="run: "):
            Report(wrong, "page.html")
    with pytest.raises(ConfigError, match="output: "):
        Report(["a", "b"])


def test_a_damaged_line_inside_the_metrics_is_an_error(tmp_path: Path) -> None:
    run = write_old_run(tmp_path / "old")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, record 1"):
        read_run(run)


# Whole pages -----------------------------------------------------------------------------------------------------


def test_a_page_refers_to_nothing_outside_and_runs_one_script_only(toy: Path) -> None:
    page = run_page(read_run(toy))
    tags = tags_of(page)
    assert {tag for tag, _ in tags} <= set(
        "html head meta title style body main header section nav h1 h2 h3 h4 p a b i dl div dt dd ul li span bdi table "
        "thead tbody tr th td figure figcaption svg path circle text details summary article input label script "
        "select option ol ins".split()
    )
    names = {name for _, attributes in tags for name in attributes}
    assert not {"src", "srcset", "action", "xlink:href", "xmlns"} & names
    assert not [name for name in names if name.startswith("on")]
    assert all(attributes["href"].startswith("#") for _, attributes in tags if "href" in attributes)
    styles = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    assert styles and not re.search(r"url\(|@import|@font-face", styles)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None and policy[1].replace("&#x27;", "'").startswith(
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def test_pages_are_the_same_every_time(toy: Path, tmp_path: Path) -> None:
    assert run_page(read_run(toy)) == run_page(read_run(toy))
    Report(str(toy)).run()
    first = (toy / "report.html").read_bytes()
    Report(str(toy), str(tmp_path / "again.html")).run()
    assert (tmp_path / "again.html").read_bytes() == first  # a report that is there already changes nothing


def test_runs_are_compared(toy: Path, tmp_path: Path) -> None:
    other = write_toy_run(tmp_path / "other" / "run")
    rows = read_jsonl(other / "eval.jsonl")
    write_lines(other / "eval.jsonl", [row | {"factual_error_rate": 0.0625} for row in rows])
    names = names_of([toy, other])
    assert names == [f"{toy.parent.name}/run", "other/run"]
    page = compare_page(dict(zip(names, [read_run(toy), read_run(other)], strict=True)))
    row = re.search(r"<tr><td><bdi>factual error rate</bdi></td>(.*?)</tr>", page)
    assert row and re.findall(r">([\d.]+)<", row[1]) == ["0.500", "0.200", "0.062"]  # start, then both as exported
    assert "What is missing" not in page
    cells = re.search(r'<div class="cells">(.*?)</article>', page, re.DOTALL)
    assert cells and re.findall(r"<h4>(.*?)</h4>", cells[1]) == ["start", *names]


def test_different_rewards_share_no_axis(toy: Path, tmp_path: Path) -> None:
    """Totals of other weights are in another unit; raw values of the same scorer are not."""
    record, same = read_run(toy), read_run(toy)
    config = json.loads((toy / "config.yaml").read_text())
    config["reward"]["weights"]["relevance"] = 0.9
    other = replace(record, config=config)
    titles = re.compile(r"<figcaption><b>(.*?)</b>")
    assert titles.findall(overlays({"a": record, "b": same}))[0] == "Validation score"
    found = titles.findall(overlays({"a": record, "b": same, "c": other}))
    assert found[:2] == ["Validation score: a, b", "Validation score: c"]
    assert found.count("relevance, mean of a segment") == 1
    config["reward"]["components"]["relevance"]["path"] = "another"
    found = titles.findall(overlays({"a": record, "c": replace(record, config=config)}))
    assert [t for t in found if t.startswith("relevance,")] == [
        "relevance, mean of a segment: a",
        "relevance, mean of a segment: c",
    ]
    page = compare_page({"a": record, "c": other})
    row = re.search(r"<tr><td><bdi>weighted total</bdi>(.*?)</tr>", page)
    assert row and "by each run&#x27;s own reward" in row[1] and re.findall(r'"num">(.*?)<', row[1])[0] == "–"


def test_weights_that_moved_are_drawn_and_named(toy: Path, tmp_path: Path) -> None:
    directory = write_toy_run(tmp_path / "toy")
    config = read_json(directory / "config.yaml")
    first, _, last = COMPONENTS
    plain = read_run(directory)
    assert "Weights of training" not in reward_curves(plain) and "in training" not in components_table(plain)
    for part in (
        {"schedule": {first: {"steps": [1, 6], "weights": [0.5, 1.0]}}},
        {"constraints": {last: {"at_least": 0.25, "of": "sum"}}},
    ):
        config["reward"] |= part
    rows = [{**step_row(s), f"reward/{first}/weight": 0.4 + 0.1 * s} for s in range(1, 7)]
    write_json(directory / "config.yaml", config)
    write_lines(directory / "metrics.jsonl", rows)
    moved = read_run(directory)
    assert len(by_identity({"a": plain, "b": moved})) == 1  # validations are weighed as configured
    told = components_table(moved)
    assert "in training" in told and "linear 0.5 at 1, 1.0 at 6" in told and "sum at least 0.25" in told
    assert "Weights of training" in reward_curves(moved)
    config["reward"]["gates"] = {last: {"by": first, "at_least": 0.5}}
    write_json(directory / "config.yaml", config)
    assert len(by_identity({"a": plain, "b": read_run(directory)})) == 2
    config["reward"] |= {"schedule": {first: {"steps": 3}}, "constraints": [], "gates": {last: "x"}}
    write_json(directory / "config.yaml", config)
    assert "in training" not in components_table(read_run(directory))


def test_what_each_point_prepared_for_itself_is_the_same_scorer(toy: Path) -> None:
    def at(name: str) -> RunRecord:
        config = json.loads((toy / "config.yaml").read_text())
        config["output_dir"] = f"points/{name}"
        config["reward"]["components"]["relevance"]["path"] = f"points/{name}/prepared/rm"
        return replace(read_run(toy), config=config)

    assert len(by_identity({"a": at("a"), "b": at("b")})) == 1
    assert changed_keys({"a": at("a"), "b": at("b")}) == {}


def test_configurations_are_shown_and_compared(toy: Path) -> None:
    record = read_run(toy)
    assert "<bdi>reward.weights.relevance</bdi></td><td><bdi>0.5</bdi>" in run_page(record)
    other = replace(record, config={**record.config, "seed": 4, "ppo": {"kl": {"beta": 0.1}}})
    assert changed_keys({"a": record, "b": other}) == {"seed": ["3", "4"], "ppo.kl.beta": ["–", "0.1"]}
    table = re.search(r'<section id="configuration">(.*?)</section>', compare_page({"a": record, "b": other}))
    assert table and re.findall(r"<td><bdi>(.*?)</bdi></td>", table[1])[:3] == ["seed", "3", "4"]


def test_what_several_runs_lack_is_told_once(toy: Path, tmp_path: Path) -> None:
    old = read_run(write_old_run(tmp_path / "old"))
    listed = re.search(r'<section id="missing">(.*?)</section>', compare_page({"a": old, "b": old, "c": read_run(toy)}))
    assert listed is not None
    lines = [text_of(line) for line in re.findall(r"<li>(.*?)</li>", listed[1])]
    assert len(lines) == len(old.missing) and all(line.startswith("a, b: ") for line in lines)
    assert "<b>all runs</b>: There is no eval.jsonl." in compare_page({"a": old, "b": old})


def test_a_sweep_page(toy: Path, tmp_path: Path) -> None:
    metrics = {"error": {"mean": 0.25, "std": 0.125, "min": 0.1, "max": 0.4}}
    result = {
        "command": "python scripts/sweep.py <x>",
        "commit": "abc",
        "metrics": {"error": "true error"},
        "summary": [
            {
                "system": "PPO",
                "swept": {"preset": "short", "reward.weights.a": "0.4"},
                "weights": {"a": 0.4},
                "n": 2,
                "metrics": metrics,
            }
        ],
        "rows": [
            {"system": "PPO", "swept": {"preset": "short"}, "seed": 1, "metrics": {"error": 0.1}, "run": "points/x"}
        ],
        "failed": [{"name": "p2", "stage": "train", "error": "out of <memory>", "log": "points/p2/log"}],
    }
    page = sweep_page("Sweep <1>", result, "", [("short", toy), ("gone", tmp_path / "gone")])
    table = re.search(r'<section id="points">.*?</section>', page, re.DOTALL)
    assert table and [text_of(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", table[0])] == [
        "PPO",
        "short",
        "0.4",
        "2",
        "0.250 ± 0.125",
    ]
    failed = re.search(r'<section id="failed">.*?</section>', page, re.DOTALL)
    assert failed and "out of &lt;memory&gt;" in failed[0]
    assert "1 of the points failed" in page and "gone: file" in page and "Sweep &lt;1&gt;" in page
    assert "<script>window" not in page


def test_a_sweep_of_which_nothing_is_finished_has_a_page() -> None:
    assert "<h1><bdi>Nothing yet</bdi></h1>" in sweep_page("Nothing yet", {}, "", [])


def test_a_plot_takes_the_colours_of_the_page() -> None:
    path = '<path style="fill: #ffffff; stroke: #0072b2"/>'
    svg = f'<?xml version="1.0"?>\n<svg><metadata>http://purl.org</metadata>{path}</svg>'
    assert inline_svg(svg) == (
        '<div class="plot"><svg><path style="fill: var(--paper); stroke: var(--s0)"/></svg></div>'
    )


def test_hostile_text_reaches_the_page_as_text(toy: Path) -> None:
    page = run_page(read_run(toy))
    assert [tag for tag, _ in tags_of(page)].count("script") == 1
    read = re.sub(r"<[^>]*>", "", page)  # no attribute holds a bare >
    for text in HOSTILE[:3]:
        assert escape(text) in read


# Answers over time -----------------------------------------------------------------------------------------------


def test_changed_words_are_marked_and_nothing_is_lost() -> None:
    assert changed_words("The cat is red.", "The dog is red.") == [("The ", False), ("dog", True), (" is red.", False)]
    assert changed_words("", "New") == [("New", True)] and changed_words("Old", "") == []


@given(st.text(max_size=40), st.text(max_size=40))
def test_the_pieces_of_a_changed_text_are_the_text(before: str, now: str) -> None:
    assert "".join(piece for piece, _ in changed_words(before, now)) == now
    assert all(not new for _, new in changed_words(now, now))


def test_answers_to_one_prompt_stand_under_one_another_worst_first(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    texts = {0: "Red cat.", 2: "Red dog.", 4: "Red dog.", 6: "Blue dog."}
    for step, text in texts.items():
        rows = [response(3, "Good text."), response(1, text)]
        write_lines(run / "samples" / f"validation_step_{step}.jsonl", rows)
    (run / "samples" / "step_3.jsonl").unlink()
    write_lines(run / "samples" / "step_1.jsonl", [response(5, "Once. Twice."), response(6, "Not drawn again.")])
    write_lines(run / "samples" / "step_6.jsonl", [response(5, "Once. Thrice.")])
    html = timelines(read_run(run))
    assert html is not None
    first = html[html.index("<article") : html.index("</article>")]
    assert "question: Red dog." in text_of(first + "</article>")
    assert re.findall(r"<b>(step .*?)</b>", first) == ["step 0, initial policy", "step 2", "step 4, exported", "step 6"]
    assert re.findall(r"<ins>(.*?)</ins>", first) == ["dog.", "Blue"] and first.count("the same answer") == 1
    assert 'data-t="0.025"' in first  # the exported answer: +0.5 −0.5 +0.5 −0.5 +0.025, the lower of the two
    again = html[html.index("Sampled answers") :]
    assert "in several of the 2 steps read here: 1." in again and re.findall(r"<ins>(.*?)</ins>", again) == ["Thrice."]


def test_reference_answers_stand_beside_the_answers(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    prompt = response(0, HOSTILE[0])["prompt"]
    write_json(tmp_path / "dev.json", [{"text": prompt, "answer": ["<b>The</b> reference."]}, {"text": 3}, "x"])
    config = json.loads((run / "config.yaml").read_text())
    write_json(run / "config.yaml", config | {"validation_data": str(tmp_path / "dev.json")})
    page = run_page(read_run(run))
    assert page.count("<bdi>&lt;b&gt;The&lt;/b&gt; reference.</bdi>") == 3  # beside every list that shows the prompt
    write_json(run / "config.yaml", config | {"validation_data": "nowhere.json"})
    assert "No reference answers: the validation data nowhere.json" in run_page(read_run(run))


@pytest.mark.scripts
def test_a_real_run_is_reported_by_one_command(smoke: Path, tmp_path: Path) -> None:
    run = tmp_path / "smoke"
    shutil.copytree(smoke, run)
    finished = run_script("report", f"run={run}")
    assert finished.returncode == 0, finished.stderr
    page = (run / "report.html").read_text(encoding="utf-8")
    assert finished.stdout == f"report: {run / 'report.html'}\n"
    section = re.search(r'<section id="answers">.*?</section>', page, re.DOTALL)
    assert section and re.findall(r"<h4>(.*?)</h4>", section[0])[0].startswith("step 0")
    assert "advantage" in section[0] and "no token records" not in page
    rows = read_jsonl(run / "samples" / "validation_step_0.jsonl")
    assert escape(rows[0]["response"].split()[0]) in section[0]
