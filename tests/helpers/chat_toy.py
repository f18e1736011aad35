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

CLOSED = "<think>\n\n</think>\n\n"
THINKING = TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""A template that closes the thinking part itself where it is switched off, as Qwen3's does."""
MODES = (
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
    "{{ '<|im_start|>system\nbe ' + ('kind' if enable_thinking else 'red') + '<|im_end|>\n' }}"
    "{% for message in messages %}{% if message.role != 'assistant' or enable_thinking %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}"
    "{% else %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' + message.content + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if not enable_thinking %}{{ '<think>\n\n</think>\n' }}{% endif %}{% endif %}"
)
"""A template that says in a system message of its own which mode it is in, as SmolLM3's does."""


def chat_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A word-level tokenizer with the two control tokens, and where the template thinks with its two marks."""
    tokenizer = causal_tokenizer(build_tokenizer(CORPUS), 256)
    tokenizer.add_special_tokens({"extra_special_tokens": [START, END]})
    if template is not None and "<think>" in template:
        tokenizer.add_tokens(["<think>", "</think>"])
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
