"""SmolLM2-135M-Instruct from its GGUF file: weights dequantised to fp32, tokenizer, chat template, generation settings.

Reads this one file (architecture Llama, Q4_1, vocabulary of the kind `smollm`). Needs the package `gguf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from finegrained_rlhf.models.from_disk import open_tokenizer, open_weights
from finegrained_rlhf.models.quiet import quiet_transformers

_OF_THE_FILE = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version")


def write_smollm2(file: Path, directory: Path) -> None:
    """Write a Llama with its tokenizer from the GGUF file.

    The values of the weights are those that the quantised ones stand for, so nothing is rounded again: an embedding of
    Q8_0, linear layers of Q4_1, norms of fp32.

    Args:
        file: the GGUF file.
        directory: to write into.
    """
    with quiet_transformers():
        read = open_weights(AutoModelForCausalLM, file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = open_tokenizer(file.parent, gguf_file=file.name)
        settings = {key: value for key, value in read.config.to_dict().items() if key not in _OF_THE_FILE}
        settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")  # GGUF keeps 1e-5 as an fp32
        model = LlamaForCausalLM(LlamaConfig(**settings))
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(directory)
    tokenizer.backend_tokenizer.pre_tokenizer = _digits_apart()
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(directory)


def _digits_apart() -> Any:
    """How SmolLM cuts a text before its merges: every digit alone. transformers reads GGUF files without this step."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
