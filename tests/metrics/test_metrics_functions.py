"""Metrics: hand numbers, the naive definition, and `evaluate`'s classes without a cache or a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rouge_score import rouge_scorer

import finegrained_rlhf.metrics as metrics

ROOT = Path(__file__).parents[2]


def test_rouge_lsum_by_hand() -> None:
    # one sentence: LCS("the cat sat", "the cat ran away") = 2; precision 2/3, recall 2/4 -> F = 4/7
    assert metrics.rouge_lsum(["the cat sat."], [["the cat ran away."]]) == pytest.approx(4 / 7, abs=1e-6)


def test_rouge_lsum_takes_the_best_reference_and_the_mean() -> None:
    best = metrics.rouge_lsum(["the cat sat."], [["nothing alike", "the cat sat."]])
    assert best == pytest.approx(1.0)
    assert metrics.rouge_lsum(["the cat sat.", "a dog"], [["the cat sat."], ["zebra"]]) == pytest.approx(0.5)


def test_rouge_lsum_counts_sentences_not_their_order() -> None:
    prediction, reference = "The dog ran. A cat slept.", "A cat slept. The dog ran."
    assert metrics.rouge_lsum([prediction], [[reference]]) == pytest.approx(1.0)
    one_line = rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True).score(reference, prediction)
    assert one_line["rougeLsum"].fmeasure < 1.0


def test_rouge_lsum_equals_rouge_score_on_newlines() -> None:
    prediction = "Cats are running. They sat on mats, often."
    reference = "The cats ran. They were sitting on a mat."
    expected = rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True).score(
        "The cats ran.\nThey were sitting on a mat.", "Cats are running.\nThey sat on mats, often."
    )
    assert metrics.rouge_lsum([prediction], [[reference]]) == pytest.approx(expected["rougeLsum"].fmeasure)


def test_empty_texts_do_not_divide_by_zero() -> None:
    assert metrics.rouge_lsum([""], [["a reference"]]) == 0.0
    assert metrics.rouge_lsum([], []) == 0.0
    assert metrics.error_free_share([[], []]) == 0.0
    assert metrics.finite_mean([]) == 0.0


def test_error_free_share_weights_by_segments() -> None:
    # 3 of 4 in one response, 0 of 1 in the other: 3/5, not (3/4 + 0)/2
    assert metrics.error_free_share([[1, 1, 0, 1], [0], []]) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.error_free_share([[2]]),
        lambda: metrics.finite_mean([float("nan")]),
        lambda: metrics.rouge_lsum(["a"], [[]]),
        lambda: metrics.rouge_lsum(["a"], []),
    ],
)
def test_bad_input_is_refused(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


def test_metric_classes_equal_the_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    predictions, references = ["the cat sat.", "a dog"], [["the cat ran away.", "no"], ["the dog"]]
    metric = metrics.RougeLSum()
    assert metric.compute(predictions=predictions, references=references) == {
        "rouge_lsum": pytest.approx(metrics.rouge_lsum(predictions, references))
    }
    for text, group in zip(predictions, references, strict=True):
        metric.add_batch(predictions=[text], references=[group])
    assert metric.compute()["rouge_lsum"] == pytest.approx(metrics.rouge_lsum(predictions, references))
    assert metrics.ErrorFreeShare().compute(predictions=[[1, 0], [1]]) == {
        "error_free_share": pytest.approx(2 / 3),
        "segments": 3,
    }
    assert not list(tmp_path.iterdir())


def test_metrics_import_without_evaluate() -> None:
    code = (
        "import sys; sys.modules['evaluate'] = None\n"
        "import finegrained_rlhf.metrics as m\n"
        "assert m.error_free_share([[1]]) == 1.0\n"
        "from finegrained_rlhf.core.errors import ConfigError\n"
        "try:\n    m.RougeLSum\nexcept ConfigError as error:\n    print('told:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install evaluate" in done.stdout


@pytest.mark.slow
def test_metrics_write_no_cache(tmp_path: Path) -> None:
    code = "import finegrained_rlhf.metrics as m; print(m.ErrorFreeShare().compute(predictions=[[1, 0]]))"
    environment = {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert not [path for path in tmp_path.rglob("*") if "metrics" in path.parts or path.suffix == ".arrow"]
