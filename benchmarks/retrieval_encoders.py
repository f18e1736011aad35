"""A tokenizer and an encoder with random weights for the retrieval benchmark, and the retrievers that use them.

The encoder has MiniLM's shape, that of small dual encoders: 6 layers, width 384; one of BERT-base's shape does about
eight times the work. Its vectors mean nothing; what they cost is what a trained one's cost.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel

from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25LightConfig
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.retrieval.dense.retriever import DenseConfig

SUBWORDS = 8000


def light_config(folder: Path, texts: list[str]) -> Bm25LightConfig:
    """BM25-light over a byte-level tokenizer that was made from the corpus."""
    directory = folder / "tokenizer"
    if not directory.is_dir():
        build_tokenizer(texts[:20_000], kind="bpe", vocab_size=SUBWORDS).save_pretrained(directory)
    return Bm25LightConfig(str(directory))


def dense_config(folder: Path, texts: list[str]) -> DenseConfig:
    """A dense retriever over a random encoder."""
    directory = folder / "encoder"
    if not directory.is_dir():
        torch.manual_seed(0)
        tokenizer = encoder_tokenizer(build_tokenizer(texts[:20_000], kind="bpe", vocab_size=SUBWORDS), 512)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        )
        BertModel(config).save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    return DenseConfig(EncoderConfig(str(directory), device="cpu"))
