"""Two questions about a mill with a corpus, an index and a file of rewrites, and the evaluation of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.data import RewriteExample, write_rewrite_jsonl, write_rewrites
from finegrained_rlhf.conqrr.evaluation import EvaluateRewrites
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config


def make_mills(folder: Path) -> Path:
    """Fill a directory."""
    examples = [
        RewriteExample("d_1", "d", 1, (), "who built the mill", "who built the mill", gold=("mill",)),
        RewriteExample(
            "d_2", "d", 2, ("who built the mill", "Ada"), "and its color", "what color is the mill", gold=("red",)
        ),
    ]
    write_rewrite_jsonl(folder / "questions.jsonl", examples)
    passages = {
        "mill": "Ada built the mill",
        "red": "the color of the mill is red",
        "inn": "an inn",
        "sea": "and a sea",
    }
    write_jsonl(folder / "corpus.jsonl", ({"id": name, "text": text} for name, text in passages.items()))
    Bm25Config().build(str(folder / "corpus.jsonl"), folder / "index")
    write_rewrites(folder / "ours.jsonl", {"d_2": "color mill"})
    return folder


def job(folder: Path, **changes: Any) -> EvaluateRewrites:
    """The evaluation, with some fields changed."""
    given: dict[str, Any] = {
        "data": str(folder / "questions.jsonl"),
        "index": str(folder / "index"),
        "output": str(folder / "scores.json"),
        "corpus": str(folder / "corpus.jsonl"),
        "rewrites": {"ours": str(folder / "ours.jsonl")},
        "runs": str(folder / "runs"),
        "progress": False,
    }
    return EvaluateRewrites(**{**given, **changes})
