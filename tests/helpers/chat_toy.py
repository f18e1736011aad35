"""A tiny chat model: GPT-2 with two control tokens around each turn, and the template that writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finegrained_rlhf.models.tiny import TinyGPT2Config
from finegrained_rlhf.models.tiny_networks import build_gpt2, build_tokenizer, causal_tokenizer

START, END = "<|im_start|>", "<|im_end|>"
CORPUS = ["the cat sat on a mat , and one dog ran far away who saw it red blue green system user assistant be kind !"]
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, as SmolLM2 and Qwen have it; it refuses tools."""


def chat_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A word-level tokenizer with the two control tokens."""
    tokenizer = causal_tokenizer(build_tokenizer(CORPUS), 256)
    tokenizer.add_special_tokens({"extra_special_tokens": [START, END]})
    tokenizer.chat_template = template
    return tokenizer


def save_chat_model(path: Path, template: str | None = TEMPLATE) -> Path:
    """A model directory of a tiny chat model."""
    tokenizer = chat_tokenizer(template)
    build_gpt2(tokenizer, TinyGPT2Config(16, 1, 2, 256), seed=3).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def talk(*turns: str, answer: str | None = None) -> list[dict[str, str]]:
    """A conversation in which user and assistant speak in turn; the answer last."""
    said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return said if answer is None else [*said, {"role": "assistant", "content": answer}]
