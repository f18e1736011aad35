"""Sizes of the tiny models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, below
from finegrained_rlhf.models.tiny.weights import check_sizes

TokenizerKind = Literal["word", "bpe"]


@dataclass(frozen=True)
class TinyT5Config(Settings):
    """Sizes of a tiny T5.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: encoder layers, and as many decoder layers.
        num_heads: attention heads; d_model must divide by it.
        gated: gated GELU feed-forward layers as in T5 v1.1; plain ReLU otherwise.
        tied: the output head shares the input embedding (T5); untied as in T5 v1.1 otherwise.
        dropout_rate: stored in the configuration; the project's trainers decide whether it is on.
        structured: begin with directions in the encoder and with copying in the decoder (`structure_t5`); needs three
            heads or more.
        matching: begin with an encoder head that looks for equal words (`match_words`); needs four heads or more.
    """

    d_model: int = 64
    d_ff: int = 256
    num_layers: int = 2
    num_heads: int = 4
    gated: bool = False
    tied: bool = True
    dropout_rate: float = 0.1
    structured: bool = False
    matching: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.structured and self.num_heads < 3:
            raise ConfigError(f"structured needs three heads or more, got {self.num_heads}")
        if self.matching and self.num_heads < 4:
            raise ConfigError(f"matching needs four heads or more, got {self.num_heads}")


@dataclass(frozen=True)
class TinyGPT2Config(Settings):
    """Sizes of a tiny GPT-2: width, layers, heads and the longest input in tokens."""

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_length: int = 1024

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.max_length, self.num_layers, self.num_heads)


@dataclass(frozen=True)
class TinyLlamaConfig(Settings):
    """Sizes of a tiny Llama.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: query heads; d_model must divide by it, into an even width.
        num_key_value_heads: heads of keys and values, which num_heads must divide by.
        max_length: longest input in tokens.
        tied: the output head shares the input embedding, as in SmolLM2 and the small Llama 3.2.
        initializer_range: standard deviation of the weights; Llama's 0.02 is made for a width of 4096.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    num_heads: int = 4
    num_key_value_heads: int = 2
    max_length: int = 1024
    tied: bool = True
    initializer_range: Annotated[float, above(0)] = 0.1

    def __post_init__(self) -> None:
        check_sizes(self.d_model, min(self.d_ff, self.max_length), self.num_layers, self.num_heads)
        if self.num_key_value_heads < 1 or self.num_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_key_value_heads, got {self.num_heads} and "
                f"{self.num_key_value_heads}"
            )
        if self.d_model // self.num_heads % 2:
            raise ConfigError(
                f"rotary positions need heads of even width, got {self.d_model} / {self.num_heads} = "
                f"{self.d_model // self.num_heads}"
            )


@dataclass(frozen=True)
class TinyLongformerConfig(Settings):
    """Sizes of a tiny Longformer.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: attention heads; d_model must divide by it.
        max_length: longest input in tokens, special tokens included.
        attention_window: keys that a token sees, half of them on each side; even, at least 4. transformers pads inputs
            to a multiple of it, so small is fast.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    num_heads: int = 4
    max_length: Annotated[int, at_least(8)] = 1024
    attention_window: int = 64
    dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.attention_window < 4 or self.attention_window % 2:
            raise ConfigError(f"attention_window must be even and at least 4, got {self.attention_window}")


@dataclass(frozen=True)
class TinyBertConfig(Settings):
    """Sizes of a tiny BERT.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: attention heads; d_model must divide by it.
        max_length: longest input in tokens, special tokens included.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
        initializer_range: standard deviation of the random weights. BERT's own 0.02 is made for a width of 768; a
            narrow model needs a larger one to begin to learn at all.
        structured: begin with attention to near positions and to equal words (`structure_attention`); needs an even
            number of heads. Without it a model from scratch does not learn to compare words in minutes.
    """

    d_model: int = 64
    d_ff: int = 256
    num_layers: int = 2
    num_heads: int = 4
    max_length: Annotated[int, at_least(8)] = 512
    dropout_rate: Annotated[float, at_least(0), below(1)] = 0.0
    initializer_range: Annotated[float, above(0)] = 0.1
    structured: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.structured and self.num_heads % 2:
            raise ConfigError(f"structured needs an even number of heads, got {self.num_heads}")
