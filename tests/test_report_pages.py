"""Reports of runs, comparisons and sweeps: what they say, what they lack, and that they refer to nothing outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from report_toy import (
    COMPONENTS,
    HOSTILE,
    response,
    tags_of,
    text_of,
    validation_row,
    write_lines,
    write_old_run,
    write_toy_run,
)
from script_runs import run_script

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl, write_json
from finegrained_rlhf.report.compare import compare_page, names_of
from finegrained_rlhf.report.curves import training_curves
from finegrained_rlhf.report.html import escape
from finegrained_rlhf.report.job import WriteReport
from finegrained_rlhf.report.measures import mean_true_error, price_measures, reward_measures, true_measures
from finegrained_rlhf.report.overview import header
from finegrained_rlhf.report.record import read_run
from finegrained_rlhf.report.run_page import run_page
from finegrained_rlhf.report.sweep import inline_svg, sweep_page


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


def test_the_header_says_better_worse_and_warns(toy: Path) -> None:
    text = text_of(header(read_run(toy)))
    assert "Bettertruthrelevance error rate 0.400 → 0.200; factual error rate 0.500 → 0.200" in text
    assert "Worsenothing that was measured" in text
    assert "answers of 20.0 tokens (at first 20.0); KL 2.00 nats" in text
    assert "length, step 6: relevance rose from 0.167 to 1.000" in text and "eos, step 6" in text


def test_a_run_whose_first_validation_was_the_best_is_shown_at_its_last(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "run")
    write_json(run / "policy" / "export.json", {"step": 0})
    record = read_run(run)
    assert record.best is not None and record.after is not None
    assert (record.best["step"], record.after["step"]) == (0, 6)
    text = text_of(header(record))
    assert "best at step 0" in text and "Worsetruthfactual error rate 0.500 → 0.600" in text
    assert "Butno validation scored higher than the first" in text
    assert "step 6, last" in run_page(record)


def test_trust_drift_alignment_and_phases_are_shown(toy: Path) -> None:
    page = run_page(read_run(toy))
    assert re.findall(r'<td class="num (?:hit|miss)">(\d+)</td>', page)[:4] == ["31", "9", "16", "44"]
    assert "Calibration, ECE 0.055" in page and "Agreement with the oracle" in page
    assert "the lowest share was 100.00%" in page
    phases = re.findall(r'<i class="swatch s\d"></i>(\w+)</td><td class="num">([\d.]+%)', page)
    assert phases == [("rollout", "25.0%"), ("rewards", "12.5%"), ("scoring", "12.5%"), ("update", "50.0%")]
    assert "What is missing" not in page


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
    assert rows == [["4", "2.00", "2", "50.00%"], ["4", "2.00", "2", "50.00%"], ["2", "1.00", "1", "50.00%"]]


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


def test_the_reward_models_are_found_where_the_run_was_started(tmp_path: Path) -> None:
    run = write_toy_run(tmp_path / "outputs" / "toy")
    config = json.loads((run / "config.yaml").read_text())
    for i, component in enumerate(config["reward"]["components"].values()):
        component["path"] = f"outputs/models/{i}/model"  # as seen from tmp_path; the run is in its output_dir below it
    write_json(run / "config.yaml", config)
    assert set(read_run(run).trust) == set(COMPONENTS)


def test_a_directory_that_is_no_run_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no metrics.jsonl and no eval.jsonl"):
        WriteReport(str(tmp_path)).run()
    with pytest.raises(DataError, match="no such directory"):
        WriteReport(str(tmp_path / "nowhere")).run()
    for wrong in ([], [str(tmp_path), f"{tmp_path}/."]):
        with pytest.raises(ConfigError, match="run: "):
            WriteReport(wrong, "page.html")
    with pytest.raises(ConfigError, match="output: "):
        WriteReport(["a", "b"])


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
        "thead tbody tr th td figure figcaption svg path circle text details summary article input label script".split()
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
    WriteReport(str(toy)).run()
    first = (toy / "report.html").read_bytes()
    WriteReport(str(toy), str(tmp_path / "again.html")).run()
    assert (tmp_path / "again.html").read_bytes() == first  # a report that is there already changes nothing


def test_runs_are_compared(toy: Path, tmp_path: Path) -> None:
    other = write_toy_run(tmp_path / "other" / "run")
    rows = read_jsonl(other / "eval.jsonl")
    write_lines(other / "eval.jsonl", [row | {"factual_error_rate": 0.0625} for row in rows])
    names = names_of([toy, other])
    assert names == [f"{toy.parent.name}/run", "other/run"]
    page = compare_page(dict(zip(names, [read_run(toy), read_run(other)], strict=True)))
    row = re.search(r"<tr><td><bdi>factual error rate</bdi></td>(.*?)</tr>", page)
    assert row and re.findall(r">([\d.]+)<", row[1]) == ["0.500", "0.200", "0.062"]  # start, then both at their best
    assert "What is missing" not in page
    cells = re.search(r'<div class="cells">(.*?)</article>', page, re.DOTALL)
    assert cells and re.findall(r"<h4>(.*?)</h4>", cells[1]) == ["start", *names]


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
