"""A tiny sentence encoder and a small corpus for tests of dense retrieval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from finegrained_rlhf.models.tiny import TinyBertConfig
from finegrained_rlhf.models.tiny_networks import build_bert, build_tokenizer, encoder_tokenizer

WORDS = "red green blue old new mill bridge tower river harbour is of the in has a near made wood stone iron".split()


def passage_texts(count: int) -> list[str]:
    """Short texts of different lengths; every seventh repeats an earlier one."""
    texts: list[str] = []
    for i in range(count):
        words = [WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(3 + i % 6)]
        texts.append(texts[i // 2] if i % 7 == 6 else " ".join(words))
    return texts


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """Passages p000, p001, …"""
    rows = [{"id": f"p{i:03d}", "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_encoder(directory: Path, seed: int = 0, d_model: int = 32, max_length: int = 32) -> Path:
    """A random BERT with its tokenizer, as a plain Hugging Face directory."""
    tokenizer = encoder_tokenizer(build_tokenizer([" ".join(WORDS), "query : passage :"]), max_length)
    config = TinyBertConfig(d_model=d_model, d_ff=32, num_layers=1, num_heads=2, max_length=max_length)
    build_bert(tokenizer, config, seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
