"""Language models from GGUF files: weights dequantised to fp32, tokenizer, chat template, generation settings.

Reads the two files that are pinned: SmolLM2-135M-Instruct (architecture Llama, Q4_1, vocabulary of the kind `smollm`)
and Gemma 3 270M (Q4_K_M). Needs the package `gguf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM

from finegrained_rlhf.models.from_disk import open_tokenizer, open_weights
from finegrained_rlhf.models.quiet import quiet_transformers

_OF_THE_FILE = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version")


GEMMA_NOTICE = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms\n"
"""What the terms ask to be given along with the weights."""


def write_smollm2(file: Path, directory: Path) -> None:
    """Write a Llama with its tokenizer from the GGUF file.

    Args:
        file: the GGUF file: an embedding of Q8_0, linear layers of Q4_1, norms of fp32.
        directory: to write into.
    """
    tokenizer = _write_weights(file, directory)
    tokenizer.backend_tokenizer.pre_tokenizer = _digits_apart()
    tokenizer.save_pretrained(directory)


def write_gemma3(file: Path, directory: Path) -> None:
    """Write a Gemma 3 with its tokenizer, and the notice of its terms, from the GGUF file.

    Args:
        file: the GGUF file: blocks of Q4_K, Q5_0, Q6_K and Q8_0, norms of fp32.
        directory: to write into.
    """
    _write_weights(file, directory).save_pretrained(directory)
    (directory / "NOTICE").write_text(GEMMA_NOTICE, encoding="utf-8")


def _write_weights(file: Path, directory: Path) -> Any:
    """Write settings and weights in fp32; returns the tokenizer.

    The values of the weights are those that the quantised ones stand for, so nothing is rounded again.
    """
    with quiet_transformers():
        read = open_weights(AutoModelForCausalLM, file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = open_tokenizer(file.parent, gguf_file=file.name)
        settings = {key: value for key, value in read.config.to_dict().items() if key not in _OF_THE_FILE}
        settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")  # GGUF keeps 1e-5 as an fp32
        model = type(read)(type(read.config)(**settings))
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(directory)
    tokenizer.model_max_length = model.config.max_position_embeddings
    return tokenizer


def _digits_apart() -> Any:
    """How SmolLM cuts a text before its merges: every digit alone. transformers reads GGUF files without this step."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
