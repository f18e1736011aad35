"""The loss and the ranks of dense passage retrieval, and which passages a step compares."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from dpr_toy import dpr_rows, save_tower, topic_passage

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.encoders.towers import TwoTowers
from finegrained_rlhf.training.dpr.batches import DprExample, DprSet, dpr_batch, ranking_batch
from finegrained_rlhf.training.dpr.job import DprSampling
from finegrained_rlhf.training.dpr.records import read_dpr_records
from finegrained_rlhf.training.dpr.trainer import batch_scores, in_batch_loss, target_ranks


def test_the_loss_by_hand() -> None:
    """Scores 2, 1 and 0: loss log(e² + e + 1) − 2; without the second passage log(e² + 1) − 2."""
    query, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 5.0], [1.0, 5.0], [0.0, 5.0]])
    target, none = torch.tensor([0]), torch.zeros(1, 3, dtype=torch.bool)
    assert in_batch_loss(query, passages, target, none).item() == pytest.approx(0.40760596, abs=1e-6)
    second = torch.tensor([[False, True, False]])
    assert in_batch_loss(query, passages, target, second).item() == pytest.approx(0.12692801, abs=1e-6)


def test_the_loss_is_that_of_a_loop_and_its_gradient_leaves_other_golds_alone() -> None:
    torch.manual_seed(0)
    queries, passages = torch.randn(5, 4), torch.randn(9, 4, requires_grad=True)
    targets = torch.tensor([0, 3, 3, 8, 5])
    left_out = torch.rand(5, 9) < 0.4
    left_out[torch.arange(5), targets] = False
    left_out[:, 7] = True
    found = in_batch_loss(queries, passages, targets, left_out)
    for q in range(5):
        scores = [sum(float(a * b) for a, b in zip(queries[q], p, strict=True)) for p in passages.detach()]
        total = sum(math.exp(score) for p, score in enumerate(scores) if not left_out[q, p])
        assert float(found[q].detach()) == pytest.approx(math.log(total) - scores[int(targets[q])], abs=1e-5)
    found.sum().backward()
    assert passages.grad is not None and passages.grad[7].tolist() == [0.0] * 4
    reached = passages.grad.abs().sum(dim=1) > 0
    assert reached.tolist() == (~left_out).any(dim=0).tolist()


def test_ranks_share_ties_and_skip_what_is_left_out() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, -torch.inf], [1.0, 1.0, 1.0, 0.0], [0.0, 5.0, 1.0, 2.0]])
    assert target_ranks(scores, torch.tensor([2, 0, 0])).tolist() == [2.0, 2.0, 4.0]


def example(name: str, positives: tuple[int, ...], hard: tuple[int, ...] = (), others: tuple[int, ...] = ()) -> Any:
    return DprExample(name, (1,), positives, others, hard)


def test_a_gold_of_a_query_is_never_its_negative() -> None:
    """b's positive 1 is a's second positive, and c's hard negative is one of b: both are left out for their own."""
    data = DprSet(
        [example("a", (0, 1), hard=(4,)), example("b", (1, 2), others=(5,)), example("c", (3,), hard=(2, 4))],
        [(1,)] * 6,
    )
    batch = dpr_batch(data, DprSampling(hard_negatives=2, other_negatives=2), 1, 3, seed=0)
    rows = {one.id: row for row, one in enumerate(batch.examples)}
    assert sorted(batch.passages) == [0, 1, 2, 3, 4, 5] and len(set(batch.passages)) == 6
    for name, target, out in (("a", 0, [1]), ("b", 1, [2]), ("c", 3, [])):
        row = rows[name]
        assert batch.passages[int(batch.targets[row])] == target
        assert [batch.passages[i] for i in batch.left_out[row].nonzero().flatten()] == out
    # Another query's gold stays a negative, as in-batch negatives are.
    vectors = torch.eye(6)[list(batch.passages)]
    scores = batch_scores(torch.ones(3, 6), vectors, batch.targets, batch.left_out)
    assert torch.isfinite(scores[rows["c"]]).all() and int(torch.isinf(scores[rows["a"]]).sum()) == 1


def test_what_is_drawn_follows_from_seed_and_step() -> None:
    data = DprSet([example(f"{i}", (i, 20 + i), (i + 1, i + 2, i + 3), (i + 5, i + 6)) for i in range(8)], [(1,)] * 40)
    both = DprSampling("all")
    one, again = (dpr_batch(data, both, 3, 4, seed=1) for _ in range(2))
    assert one.passages == again.passages and torch.equal(one.targets, again.targets)
    others = [dpr_batch(data, both, step, 4, seed) for step, seed in ((4, 1), (3, 2))]
    assert all(other.passages != one.passages for other in others)
    golds = {one.passages[int(t)] for step in range(1, 20) for one in [dpr_batch(data, both, step, 8, 0)]
             for t in one.targets}  # fmt: skip
    assert golds == {*range(8), *range(20, 28)}
    first = dpr_batch(data, DprSampling(), 5, 8, seed=0)
    assert {first.passages[int(target)] for target in first.targets} == set(range(8))


def test_the_pool_of_a_validation_holds_every_passage_once() -> None:
    data = DprSet([example("a", (0, 1), (2, 3), (4, 5)), example("b", (2,), (0, 5), ())], [(1,)] * 6)
    assert list(ranking_batch(data, 1).passages) == [0, 1, 2, 4]
    assert list(ranking_batch(data, 30).passages) == [0, 1, 2, 3, 4, 5]
    assert ranking_batch(data, 1).left_out.tolist() == [[False, True, False, False], [False] * 4]
    with pytest.raises(ConfigError, match="positives: expected one of first, all"):
        DprSampling("second")  # type: ignore[arg-type]


def written(path: Path, **changes: Any) -> Path:
    rows = dpr_rows(3)
    rows[1] |= changes
    write_jsonl(path / "odd.jsonl", [{key: value for key, value in row.items() if value != "gone"} for row in rows])
    return path / "odd.jsonl"


def test_records_become_token_ids(tmp_path: Path) -> None:
    rows = dpr_rows(3)
    rows[1] = {**rows[1], "query": " [SEP] ".join(rows[1]["turns"]), "negatives": None}
    rows[1]["positives"] *= 2
    rows[1].pop("turns")
    write_jsonl(tmp_path / "data.jsonl", rows)
    records = read_dpr_records(tmp_path / "data.jsonl")
    assert list(records[1].turns) == dpr_rows(3)[1]["turns"] and len(records[1].positives) == 2
    tower = save_tower(tmp_path / "tower", 0)
    towers = TwoTowers.open(tower, tower, 64, 64)
    data = DprSet.of(records, towers)
    shown = towers.query.tokenizer.decode(data.examples[1].ids)
    assert (
        shown
        == "".join(
            f"{mark} {turn}" for mark, turn in zip(("<s>", "</s>", "</s>", "</s>"), records[1].turns, strict=False)
        )
        + "</s>"
    )
    used = {one["id"] for row in rows for key in ("positives", "negatives", "hard_negatives") for one in row[key] or ()}
    assert len(data.passages) == len(used) > 3
    first = rows[0]["positives"][0]["text"]
    assert towers.passage.tokenizer.decode(data.passages[0]) == f"<s> metals</s> {first}</s>"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "turn 0"}, "id 'turn 0' occurs twice"),
        ({"id": "gone"}, "id: missing field"),
        ({"turns": "gone"}, "expected turns or query, got neither"),
        ({"query": "where"}, "expected turns or query, got both"),
        ({"turns": []}, "turns: expected at least one turn"),
        ({"turns": ["where", " "]}, r"turns\[1\]: expected some text"),
        ({"turns": ["where [SEP] when"]}, r"turns\[0\]: holds ' \[SEP\] '"),
        ({"positives": []}, "positives: expected at least one passage"),
        ({"positives": "metal"}, "positives: expected a list"),
        ({"negatives": [topic_passage(1, 1)]}, "negatives: passage 'metal 1:1' is also among the positives"),
        ({"hard_negatives": [topic_passage(1)]}, "hard_negatives: passage 'metal 1:0' is also among the positives"),
        ({"negatives": [{"id": "x", "title": "y"}]}, r"negatives\[0\]\.text: missing field"),
        ({"negatives": [{"id": "x", "text": ""}]}, r"negatives\[0\]\.text: expected some text"),
        (
            {"negatives": [{**topic_passage(0), "text": "new"}]},
            r"negatives\[0\]: passage 'metal 0:0' has another title",
        ),
    ],
)
def test_bad_records_are_refused_with_file_record_and_field(tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_dpr_records(written(tmp_path, **changes))
    line = str(caught.value)
    assert "odd.jsonl" in line and "record 1" in line and "\n" not in line, line
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no record"):
        read_dpr_records(tmp_path / "empty.jsonl")


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text(json.dumps([1]) + "\n")
    with pytest.raises(DataError, match=r"odd\.jsonl"):
        read_dpr_records(tmp_path / "odd.jsonl")
