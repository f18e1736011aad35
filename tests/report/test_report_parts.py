"""The parts of a report: escaping, numbers, cutting of texts, heat maps, charts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_toy import response, text_of, write_lines

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.report.charts.heatmap import Group, cut, heat_panel
from finegrained_rlhf.report.charts.svg import Chart, Line, figure, smoothed, thinned, tick_text, ticks
from finegrained_rlhf.report.elements.html import Html, el, escape, number, signed
from finegrained_rlhf.report.runs.record import evenly
from finegrained_rlhf.runtime.directory.samples import (
    OracleMark,
    SampleRecord,
    SampleSegment,
    SampleTokens,
    read_samples,
)

# Escaping and numbers --------------------------------------------------------------------------------------------


def test_text_is_escaped_wherever_it_enters() -> None:
    assert el("p", "<b>\"&'", title='"><b>') == ('<p title="&quot;&gt;&lt;b&gt;">&lt;b&gt;&quot;&amp;&#x27;</p>')
    assert el("p", Html("<b>x</b>"), None, 3) == "<p><b>x</b>3</p>"
    assert el("input", type="radio", checked=True, disabled=False, data_k=None) == '<input type="radio" checked>'


@given(st.text(alphabet=st.characters(codec=None)))
def test_escaping_keeps_one_character_for_one_and_leaves_nothing_that_cannot_be_written(text: str) -> None:
    escaped = escape(text)
    escaped.encode("utf-8")
    assert not set("<>\"'\x00\x1b\x7f\x9b\ud83d") & set(escaped)
    read = re.sub(r"&(lt|gt|quot|amp|#x27);", lambda m: {"#x27": "'", "lt": "<", "gt": ">"}.get(m[1], "?"), escaped)
    assert len(read) == len(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.12345, "0.123"),
        (-0.5, "−0.500"),
        (1234.5, "1,234"),
        (250.04, "250.0"),
        (3, "3"),
        (0.0, "0.000"),
        (2e-5, "2.0e−05"),
        (3e-9, "0.000"),
        (-0.0, "0.000"),
        (-6e-7, "0.000"),
        (-6e-6, "−6.0e−06"),
        (float("nan"), "–"),
        (None, "–"),
        ("0.5", "–"),
        (True, "–"),
    ],
)
def test_numbers(value: object, shown: str) -> None:
    assert number(value) == shown


def test_signs() -> None:
    assert [signed(v) for v in (1.0, -1.0, -0.126, 0.001, 0.0)] == ["+1", "−1", "−0.13", "0", "0"]
    assert [signed(v, 3, trim=False) for v in (1.5, 0.0)] == ["+1.500", "0.000"]


# Cutting a text --------------------------------------------------------------------------------------------------


def segment(start: int, end: int, component: str = "a", raw: float = 1.0) -> SampleSegment:
    return SampleSegment(component, start, end, raw, raw / 2)


def test_pieces_end_where_a_token_or_a_segment_ends() -> None:
    #  a b c d e _ f g h     tokens: "" | ab | "" | cde | _f | gh | ""
    pieces = cut("abcde fgh", [segment(0, 5), segment(6, 9)], [0, 2, 2, 5, 7, 9, 9])
    assert [(p.start, p.end, p.tokens) for p in pieces] == [
        (0, 2, (0, 1)),
        (2, 5, (2, 3)),
        (5, 6, (4,)),
        (6, 7, (4,)),
        (7, 9, (5,)),
        (9, 9, (6,)),
    ]


@given(st.data())
def test_pieces_cover_the_text_once_and_every_token_is_in_one(data: st.DataObject) -> None:
    text = data.draw(st.text(max_size=30))
    offsets = st.integers(0, len(text))
    ends = sorted(data.draw(st.lists(offsets, max_size=12)))
    spans = data.draw(st.lists(st.tuples(offsets, offsets).map(sorted), max_size=6))
    pieces = cut(text, [segment(start, end) for start, end in spans], ends)
    assert "".join(text[p.start : p.end] for p in pieces) == text
    assert {token for p in pieces for token in p.tokens} == set(range(len(ends)))
    for piece in pieces:
        for start, end in spans:
            inside = start <= piece.start and piece.end <= end
            assert inside or piece.end <= start or end <= piece.start
        for token in piece.tokens:
            first = ends[token - 1] if token else 0
            assert ends[token] <= first or (first <= piece.start and piece.end <= ends[token])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"response": 7}, "response: expected text, got int"),
        (
            {"segments": [{"component": "a", "start": 0, "end": 99, "raw": 1, "weighted": 1}]},
            r"segments\[0\]: expected 0",
        ),
        ({"segments": [{"component": "a", "start": 0, "end": 1, "raw": None, "weighted": 1}]}, r"segments\[0\]\.raw"),
        ({"tokens": {"ends": [5, 3]}}, "tokens.ends: expected offsets that do not decrease"),
        ({"tokens": {"ends": [3, 4], "kl": [0.1]}}, "tokens.kl: expected 2 numbers, one a token, got 1"),
    ],
)
def test_a_damaged_sample_is_named(tmp_path: Path, change: dict, told: str) -> None:
    path = tmp_path / "step_1.jsonl"
    write_lines(path, [response(0, "Good text."), response(1, "Good text.") | change])
    with pytest.raises(DataError, match=rf"step_1\.jsonl, record 1, field {told}"):
        read_samples(path)


# Heat maps -------------------------------------------------------------------------------------------------------


def test_a_response_as_a_heat_map() -> None:
    segments = [segment(0, 4, raw=1.0), segment(5, 9, raw=-0.5), segment(0, 9, "b", raw=2.0)]
    tokens = SampleTokens([4, 9, 9], {"advantage": [0.5, -1.0, 0.0], "kl": [0.0, 0.25, 0.5]})
    response = SampleRecord("id", 0, "prompt", "Yes, no <", segments, tokens)
    html = heat_panel("panel", [Group("prompt", [("now", response), ("later", None)])], ["a", "b"])
    pieces = dict(re.findall(r'<span class="(w[^"]*)" title="[^"]*">([^<]*)</span>', html))
    # layers: 0 is a (largest value 1), 1 is b, 2 advantage (largest but outliers 0.5), 3 KL
    assert pieces == {
        "w k0p5 k1p5 k2p5": "Yes,",
        "w k1p5 k2m5 k3p5": " ",
        "w k0m2 k1p5 k2m5 k3p5": "no &lt;",
        "w k3p5 end": "end",
    }
    assert re.findall(r'<bdi class="e (e\d) (\w+)">([^<]*)<', html) == [
        ("e0", "pos", "+1"),
        ("e0", "neg", "−0.5"),
        ("e1", "pos", "+2"),
    ]
    assert "token 2: \u2068no &lt;\u2069\nadvantage −1, KL +0.25\n\u2068a\u2069 −0.5, weighted −0.25" in html
    assert re.findall(r'<span class="sums">', html) == [] and "No answer kept." in html
    sums = re.search(r'<p class="sums">(.*?)</p>', html)
    assert sums and text_of(sums[1]) == "a +0.5b +2weighted total +1.25"


def test_the_shares_of_components_in_the_advantage_are_choices_on_one_scale() -> None:
    shares = {"a": [2.0, -0.4, 0.0], "kl": [0.0, 0.8, 2.0], "baseline": [-1.0, 0.0, 0.0]}
    response = SampleRecord("id", 0, "prompt", "Yes, no <", [segment(0, 9)], SampleTokens([4, 9, 9], {}, shares))
    html = heat_panel("panel", [Group("prompt", [("now", response)])], ["a"])
    assert re.findall(r'<label for="panel-\d" class="t\d">([^<]*)</label>', html) == [
        "a",
        "advantage from a",
        "advantage from KL",
        "advantage from baseline",
    ]
    pieces = dict(re.findall(r'<span class="(w[^"]*)" title="[^"]*">([^<]*)</span>', html))
    assert list(pieces) == ["w k0p5 k1p5 k3m2", "w k0p5 k1m1 k2p2", "w k2p5 end"]


def test_what_an_oracle_found_is_underlined_and_counted() -> None:
    marked = SampleRecord("id", 0, "prompt", "Yes, no <", [segment(0, 9)], None, [OracleMark(5, 9, "irrelevant <C1>")])
    clean = SampleRecord("id", 1, "prompt", "Yes", [], None, [])
    html = heat_panel(
        "panel", [Group("prompt", [("a", marked), ("b", clean), ("c", replace(clean, marks=None))])], ["a"]
    )
    assert re.findall(r'<span class="(w[^"]*)"[^>]*>([^<]*)</span>', html) == [
        ("w k0p5", "Yes, "),
        ("w k0p5 wrong", "no &lt;"),
        ("w", "Yes"),
        ("w", "Yes"),
    ]
    assert "oracle: \u2068irrelevant &lt;C1&gt;\u2069" in html
    assert re.findall(r"<span>oracle <b>(.*?)</b>", html) == ["1 error", "no error"]


# Charts ----------------------------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_few_and_inside(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-5 * width <= tick <= high + 1e-5 * width for tick in found)
    assert found == sorted(found)


def test_ticks_of_steps_are_whole() -> None:
    assert ticks(0.0, 2.0, 5) == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert ticks(0.0, 2.0, 5, whole=True) == [0.0, 1.0, 2.0]
    assert ticks(0.0, 60.0, 5, whole=True) == ticks(0.0, 60.0, 5)
    drawn = figure(Chart("Loss", [Line("", [(0, 1.0), (2, 0.5)])]))
    assert re.findall(r'class="mid">([^<]*)<', drawn) == ["0", "1", "2"]


def test_points_say_their_values_and_long_noisy_lines_are_smoothed() -> None:
    html = figure(Chart("Score", [Line("a<b", [(4, -0.5)], style="dots")]))
    assert "<title>a&lt;b: 4, −0.5</title></circle>" in html
    assert smoothed([(i, 1.0) for i in range(19)]) == []
    points = [(float(i), float(i % 2)) for i in range(20)]
    means = dict(smoothed(points))
    assert means[0.0] == 0.0 and means[10.0] == pytest.approx(2 / 3) and means[11.0] == pytest.approx(1 / 3)
    assert figure(Chart("KL", [Line("", points, style="rough")])).count('class="smooth s0"') == 1


def test_ticks_by_hand() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-0.1, 58.0) == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert ticks(0.95, 2.05) == [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
    assert [tick_text(v) for v in (0.25, 12000.0, -3e-4, 0.0)] == ["0.25", "12k", "−3e−4", "0"]


def test_a_chart_maps_values_linearly_and_leaves_out_what_is_not_finite() -> None:
    line = Line("loss", [(0, 0.0), (5, float("nan")), (10, 1.0)])
    html = figure(Chart("Loss", [line], x_range=(0.0, 10.0), y_range=(0.0, 2.0)))
    path = re.search(r'<path d="M([\d. ]+)L([\d. ]+)" class="line s0"[^>]*>', html)
    assert path is not None
    (x0, y0), (x1, y1) = (map(float, point.split()) for point in path.groups())
    assert (x0, x1) == (50.0, 348.0)  # left edge to right edge
    assert (y0, y1) == (180.0, 96.0)  # 0 at the bottom, 1 of 2 half-way to the top (12)
    assert "No data." in figure(Chart("Empty", [Line("x", [])]))


def test_long_series_are_thinned_to_means() -> None:
    assert thinned([(i, 2.0 * i) for i in range(6)], 3) == [(0.5, 1.0), (2.5, 5.0), (4.5, 9.0)]
    assert thinned([(1, 1.0)], 3) == [(1, 1.0)]


def test_steps_are_spread_evenly() -> None:
    assert evenly(range(0, 101, 10), 3) == {0, 50, 100}
    assert evenly([1, 2], 6) == {1, 2}
