"""The table of RewriteWorld on hand-made directories: gains, groups, rewrites word by word, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tables_toy import write_settings

from finegrained_lab.experiments.conqrr.rewrite_world import SYSTEMS, RewriteWorldTable
from finegrained_lab.worlds.rewrite.make import MakeRewriteWorld
from finegrained_rlhf.conqrr.data import write_rewrites
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl

MRR = {"t5qr": (0.5, 0.8), "conqrr_rl": (0.625, 0.9), "conqrr_mix": (0.6, 1.0), "conqrr_shuffled": (0.25, 0.8)}
MRR |= {"plain_t5qr": (0.2, 0.1), "plain_rl": (0.4, 0.3)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for seed in (0, 1):
        folder = tmp_path / f"seed_{seed}"
        MakeRewriteWorld(str(folder / "world"), seed=seed, train=0, dev=0, test=40).run()
        write_json(folder / "experiment.json", {"seed": seed, "settings": {"label_share": 0.1}})
        questions = read_jsonl(folder / "world" / "test.jsonl")
        for run in RewriteWorldTable.runs:
            write_settings(folder / run, seed)
            write_jsonl(folder / run / "metrics.jsonl", [{"step": 1, "time/step_s": 90.0}])
            rows = [{"step": s, "accuracy": 0.1 * seed + s / 100, "rouge1": 0.5, "time/validate_s": 1} for s in (0, 20)]
            write_jsonl(folder / run / "eval.jsonl", rows)
            text = "rewrite" if run == "t5qr_full" else "question"
            write_rewrites(folder / "rewrites" / f"{run}.jsonl", {row["id"]: row[text] for row in questions})
        systems = {}
        for system in SYSTEMS:
            mrr = MRR.get(system, (0.4, 0.4))[seed]
            topic = {"concentrated": {"mrr": mrr / 2}, "shifted": {"mrr": mrr / 4}}
            overall = {"mrr": mrr, "hit_rate@10": 0.7, "hit_rate@100": 0.9}
            words = {"tokens": 6.0, "overlap": 0.5, "repeats": 0.1}
            systems[system] = {"overall": overall, "groups": {"topic": topic}, **words}
        write_json(folder / "evaluation.json", {"systems": systems})
    return tmp_path


def table(root: Path) -> RewriteWorldTable:
    return RewriteWorldTable(str(root / "results/table.json"), "python it", str(root), [0, 1], chosen="On seed 2.")


def test_gains_by_hand(root: Path) -> None:
    result = table(root).run()
    assert read_json(root / "results/table.json") == result
    assert result["gains"]["conqrr_rl"] == pytest.approx([0.25, 0.125])
    assert result["gains"]["conqrr_mix"] == pytest.approx([0.2, 0.25])
    assert result["gains"]["conqrr_shuffled"] == pytest.approx([-0.5, 0.0])
    assert result["gains"]["plain_rl"] == pytest.approx([1.0, 2.0])  # over plain_t5qr, not over t5qr
    page = (root / "results/table.md").read_text()
    assert re.search(r"conqrr_rl +\| t5qr +\| \+18\.8% +\| \+12\.5% +\| \+25\.0% +\| in 1 of 2 seeds", page)
    assert re.search(r"conqrr_mix .* in 2 of 2 seeds", page) and re.search(r"conqrr_shuffled .* in 0 of 2", page)
    assert "may use: 10%" in page and "The longest run took 1.5 minutes" in page
    assert result["summary"]["conqrr_rl"]["mrr_shifted"]["mean"] == pytest.approx(0.190625)
    assert re.search(r"conqrr_rl +\| 1 +\| 0\.100 +\| 0\.300 \| 20 +\| 0\.300", page)
    claims = {claim["claim"]: claim["holds_in"] for claim in result["claims"]}
    assert claims["CONQRR (RL) beats T5QR"] == 2 and claims["CONQRR (RL) beats CONQRR (mix)"] == 1
    for name in ("table.svg", "table_curves.svg"):
        assert (root / "results" / name).read_text().lstrip().startswith("<?xml")
        assert name in page


def test_rewrites_word_by_word(root: Path) -> None:
    """A question that stands alone is its own rewrite; one that does not is not."""
    exact = table(root).run()["exact"]
    for found in exact["t5qr_full"]:
        assert set(found.values()) == {1.0}
    for found in exact["conqrr_rl"]:
        assert found == {"first": 1.0, "named": 1.0, "pronoun": 0.0, "ellipsis": 0.0, "shift": 0.0}


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["context"], None, "field systems: expected scores of context"),
        (["t5qr", "overlap"], None, "record t5qr, field overlap: is not among the scores"),
        (["t5qr", "groups", "topic", "shifted"], None, "record t5qr, field shifted: is not among the scores"),
        (["t5qr", "overall", "mrr"], 0.0, "the MRR of t5qr is 0 with seed 1: there is no share of it"),
    ],
)
def test_what_is_wrong_is_named(root: Path, keys: list[str], value: float | None, message: str) -> None:
    path = root / "seed_1/evaluation.json"
    found = read_json(path)
    *above, last = ["systems", *keys]
    place = found
    for key in above:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    write_json(path, found)
    with pytest.raises(DataError, match=re.escape(message)):
        table(root).run()


def test_seeds_with_different_shares_are_refused(root: Path) -> None:
    write_json(root / "seed_1/experiment.json", {"seed": 1, "settings": {"label_share": 0.5}})
    with pytest.raises(DataError, match="run with different label_share"):
        table(root).run()
