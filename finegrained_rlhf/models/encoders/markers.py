"""Tokens that mark parts of an input, in a tokenizer and in the embeddings of its model.

Callers say what the marks mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken

from finegrained_rlhf.models.quiet import quiet_transformers


def add_markers(tokenizer: Any, markers: Sequence[str], model: Any = None) -> int:
    """Make each marker one special token, behind the vocabulary where it is not part of it, and give it an embedding.

    White space before a marker belongs to it. New embeddings are drawn as the model draws its own.

    Args:
        tokenizer: changed in place; its other special tokens stay.
        markers: the tokens.
        model: whose embeddings grow where the vocabulary is larger than they are; None where there is none yet.

    Returns:
        How many markers were new to the tokenizer.
    """
    added = [AddedToken(marker, lstrip=True, normalized=False, special=True) for marker in markers]
    number = tokenizer.add_special_tokens({"extra_special_tokens": added}, replace_extra_special_tokens=False)
    if model is not None and len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        with quiet_transformers():
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return int(number)
