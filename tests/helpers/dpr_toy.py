"""A tiny task of dense passage retrieval: queries name a topic in words that its passage does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.tiny import TinyBertConfig
from finegrained_rlhf.models.tiny_networks import build_bert, build_tokenizer, encoder_tokenizer

ASKED = "lark finch crow heron swift robin wren stork".split()
ANSWERED = "iron tin lead zinc gold brass steel bronze".split()
FILLERS = "where when which there old new big small".split()
TITLE = "metals"


def topic_passage(topic: int, copy: int = 0) -> dict[str, str]:
    """A passage of a topic; copies differ in fillers."""
    words = [FILLERS[(topic + copy) % 8], ANSWERED[topic], FILLERS[(3 * topic + copy + 1) % 8]]
    return {"id": f"metal {topic}:{copy}", "title": TITLE, "text": " ".join(words)}


def dpr_rows(count: int, shift: int = 0) -> list[dict[str, Any]]:
    """Records of two or three turns, one of which names the topic; two positives, a negative and a hard negative."""
    rows = []
    for number in range(shift, shift + count):
        topic = number % 8
        fillers = [FILLERS[(number * 5 + k * k) % 8] for k in range(2 + number % 2)]
        turns = [*fillers, f"{FILLERS[(number // 8) % 8]} {ASKED[topic]}"]
        rows.append(
            {
                "id": f"turn {number}",
                "turns": turns,
                "positives": [topic_passage(topic), topic_passage(topic, 1)],
                "negatives": [topic_passage((topic + 1 + number % 5) % 8), topic_passage((topic + 3) % 8, 1)],
                "hard_negatives": [topic_passage((topic + 2) % 8)],
            }
        )
    return rows


def save_tower(directory: Path, seed: int, dropout: float = 0.0, width: int = 32) -> Path:
    """A random BERT with its tokenizer."""
    words = [" ".join(part) for part in (ASKED, ANSWERED, FILLERS, [TITLE])]
    tokenizer = encoder_tokenizer(build_tokenizer(words), 64)
    config = TinyBertConfig(
        d_model=width, d_ff=64, num_layers=1, num_heads=2, max_length=64, dropout_rate=dropout, structured=False
    )
    build_bert(tokenizer, config, seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def dpr_files(path: Path) -> Path:
    """`train.jsonl`, `dev.jsonl`, the corpus, and two towers with dropout, `towers/query` and `towers/passage`."""
    write_jsonl(path / "train.jsonl", dpr_rows(24))
    write_jsonl(path / "dev.jsonl", dpr_rows(16, 40))
    write_jsonl(path / "corpus.jsonl", [topic_passage(topic, copy) for topic in range(8) for copy in (0, 1)])
    for seed, name in enumerate(("query", "passage")):
        save_tower(path / "towers" / name, seed, dropout=0.1)
    return path
