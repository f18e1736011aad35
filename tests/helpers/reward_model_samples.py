"""Tiny encoders and prompts that the reward-model tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from feedback_samples import LAKE, record
from transformers import BertConfig, BertForMaskedLM

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import PAIR_ORDER, Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.models.tiny import TinyLlamaConfig, TinyLongformerConfig
from finegrained_rlhf.models.tiny_networks import (
    build_llama,
    build_longformer,
    build_tokenizer,
    causal_tokenizer,
    encoder_tokenizer,
)
from reward_models.encoders.models import RewardModel

CORPUS = [
    "What is the lake like?",
    LAKE.title,
    *LAKE.sentences,
    "It is cold, wide and deep. Yes! It was warm; not so, they say. good bad word filler one two three",
]


def save_longformer(directory: Path, max_length: int = 160, window: int = 16) -> Path:
    """A tiny Longformer with its tokenizer."""
    config = TinyLongformerConfig(d_model=32, d_ff=32, num_heads=2, max_length=max_length, attention_window=window)
    tokenizer = encoder_tokenizer(build_tokenizer(CORPUS), max_length)
    build_longformer(tokenizer, config, seed=1).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_bert(directory: Path) -> Path:
    """A tiny BERT with its tokenizer: another encoder than a Longformer."""
    tokenizer = encoder_tokenizer(build_tokenizer(CORPUS), 160)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=160,
                pad_token_id=0,
            )
        ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_llama(directory: Path, max_length: int = 160, **lacking: None) -> Path:
    """A tiny Llama with its tokenizer; `pad_token=None` and the like take a token from that."""
    tokenizer = causal_tokenizer(build_tokenizer(CORPUS), max_length)
    config = TinyLlamaConfig(d_model=32, d_ff=32, num_heads=2, num_key_value_heads=1, max_length=max_length)
    for name, nothing in lacking.items():
        setattr(tokenizer, name, nothing)
    build_llama(tokenizer, config, seed=1).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def prompt(name: str = "p", passages: Sequence[Passage] | None = (LAKE,), question: str | None = None) -> Prompt:
    """A prompt with what scorers read."""
    metadata = {"question": question or "What is the lake like?", "references": ("It is wide.",)}
    return Prompt(name, "task", (5, 1), {**metadata, **({} if passages is None else {"passages": list(passages)})})


def cue_records(count: int) -> list[FeedbackRecord]:
    """Feedback in which the word "bad" alone decides: its sentences have errors, fewer of it make a better answer."""
    records = []
    for i in range(count):
        words = [["good", "bad"][(i >> bit) & 1] for bit in range(3)]
        first = " ".join(f"It is the {word} word one two." for word in words)
        others = tuple(" ".join(["It is the good word."] * (3 - n) + ["It is the bad word."] * n) for n in (0, 1, 2))
        start, spans = 0, []
        for word in words:
            piece = f"It is the {word} word one two."
            if word == "bad":
                spans += [(piece, start)]
            start += len(piece) + 1
        base = record(first, others=(others[0], others[1], others[2]), name=f"r{i}", passages=())
        errors = tuple(
            SpanError(at, at + len(piece), kind) for piece, at in spans for kind in ("Irrelevant", "Unverifiable")
        )
        faults = (len(spans), 0, 1, 2)
        preferences = tuple(0 if faults[a] == faults[b] else 1 if faults[a] < faults[b] else 2 for a, b in PAIR_ORDER)
        records.append(
            replace(base, passages=(), feedback=Feedback(errors, (), "It is the good word."), preferences=preferences)
        )
    return records


def enlarged(model: RewardModel) -> RewardModel:
    """The model with larger weights than at initialisation, so that every input matters."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model.eval()
