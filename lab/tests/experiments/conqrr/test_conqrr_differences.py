"""Differences of two systems' MRR over dialogues, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.conqrr import RewriteDifferences
from finegrained_lab.experiments.conqrr.differences import mrr_differences_page
from finegrained_rlhf.conqrr.data import RewriteExample, write_rewrite_jsonl
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import write_trec_run

DIALOGUES = ("d1", "d2", "d3")


def ranked(gold: str, rank: int | None) -> list[Hit]:
    """Ten hits with `gold` at a rank from 1, or nowhere."""
    names = [f"other{i}" for i in range(10)]
    if rank is not None:
        names[rank - 1] = gold
    return [Hit(name, 10.0 - place) for place, name in enumerate(names)]


@pytest.fixture
def compared(tmp_path: Path) -> RewriteDifferences:
    """Two questions with gold in each of three dialogues, one without; one system finds more than the other in two."""
    examples = []
    for dialogue in DIALOGUES:
        examples += [
            RewriteExample(f"{dialogue}_1", dialogue, 1, (), "what", gold=(f"{dialogue}_g1",)),
            RewriteExample(f"{dialogue}_2", dialogue, 2, ("q", "a"), "what", gold=(f"{dialogue}_g2",)),
            RewriteExample(f"{dialogue}_3", dialogue, 3, ("q", "a", "q", "a"), "what"),
        ]
    write_rewrite_jsonl(tmp_path / "questions.jsonl", examples)
    ranks = {
        "ours": {"d1": (1, 2), "d2": (1, 1), "d3": (4, None)},
        "theirs": {"d1": (2, 4), "d2": (2, 2), "d3": (4, None)},
    }
    ranks["nothing"] = dict.fromkeys(DIALOGUES, (None, None))
    for name, by in ranks.items():
        run = {
            f"{d}_{turn}": ranked(f"{d}_g{turn}", rank) for d, pair in by.items() for turn, rank in enumerate(pair, 1)
        }
        run["d1_3"] = ranked("d1_g1", 1)
        write_trec_run(tmp_path / f"{name}.trec", run, name)
    pairs = [["ours", "theirs"], ["ours", "ours"], ["ours", "nothing"]]
    return RewriteDifferences(str(tmp_path / "questions.jsonl"), {"All": str(tmp_path)}, pairs)


def test_by_hand(compared: RewriteDifferences) -> None:
    """Reciprocal ranks 1, 1/2; 1, 1; 1/4, 0 against 1/2, 1/4; 1/2, 1/2; 1/4, 0: differences 3/4, 1 and 0 a dialogue."""
    better, same, none = compared.read()["All"]
    assert better["mrr"] == pytest.approx([3.75 / 6, 2 / 6]) and better["ratio"] == pytest.approx(1.875)
    assert better["difference"] == pytest.approx(1.75 / 6)
    low, high = better["interval"]
    assert low == pytest.approx(0) and high == pytest.approx(1 / 2)  # the third dialogue, or the second, thrice
    assert (same["difference"], same["interval"]) == (0, [0, 0])
    assert none["ratio"] is None and none["mrr"][1] == 0


def test_the_section(compared: RewriteDifferences) -> None:
    page = mrr_differences_page(compared.read()["All"], {"ours": "our own"})
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    assert lines[4] == ["our own", "theirs", "0.625", "0.333", "1.88", "+0.292 [+0.000, +0.500]"]
    assert lines[6][4] == "–"


def test_what_is_refused(compared: RewriteDifferences, tmp_path: Path) -> None:
    for pairs in ([], [["ours"]]):
        with pytest.raises(ConfigError, match=r"differences\.pairs"):
            RewriteDifferences("x", {}, pairs)
    with pytest.raises(DataError, match=r"absent\.trec"):
        RewriteDifferences(compared.data, compared.runs, [["ours", "absent"]]).read()
    write_rewrite_jsonl(tmp_path / "no_gold.jsonl", [RewriteExample("x_1", "x", 1, (), "what")])
    with pytest.raises(DataError, match="nothing to compare"):
        RewriteDifferences(str(tmp_path / "no_gold.jsonl"), compared.runs, compared.pairs).read()
