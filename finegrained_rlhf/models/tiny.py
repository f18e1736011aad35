"""Tiny models for a corpus: which words a data file holds, sizes, and the job that writes them.

Every string in a data file (JSON, JSON lines, plain text) is corpus, except under the key `id`. Models and tokenizers
lie in the ordinary Hugging Face layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, above, at_least, below


def check_sizes(width: int, inner: int, layers: int, heads: int) -> None:
    """Raise ConfigError unless all sizes are positive and the heads divide the width."""
    if min(width, inner, layers, heads) < 1 or width % heads:
        raise ConfigError(
            f"sizes must be positive and the width a multiple of the heads, got width {width}, inner size {inner}, "
            f"{layers} layers, {heads} heads"
        )


@contextmanager
def drawn_under(seed: int) -> Iterator[None]:
    """Random weights made inside are those of `seed`; the caller's random state is left alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


TokenizerKind = Literal["word", "bpe"]


@dataclass(frozen=True)
class TinySizes(Settings):
    """What tiny transformers have in common.

    Attributes:
        d_model: width.
        d_ff: width of the feed-forward layers.
        num_layers: layers.
        num_heads: attention heads; d_model must divide by it.
    """

    d_model: int = 64
    d_ff: int = 128
    num_layers: int = 2
    num_heads: int = 4

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)


@dataclass(frozen=True)
class TinyT5Config(TinySizes):
    """Sizes of a tiny T5.

    Attributes:
        num_layers: encoder layers, and as many decoder layers.
        gated: gated GELU feed-forward layers as in T5 v1.1; plain ReLU otherwise.
        tied: the output head shares the input embedding (T5); untied as in T5 v1.1 otherwise.
        dropout_rate: stored in the configuration; the project's trainers decide whether it is on.
        structured: begin with directions in the encoder and with copying in the decoder (`structure_t5`); needs three
            heads or more.
        matching: begin with an encoder head that looks for equal words (`match_words`); needs four heads or more.
    """

    d_ff: int = 256
    gated: bool = False
    tied: bool = True
    dropout_rate: float = 0.1
    structured: bool = False
    matching: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
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
class TinyLlamaConfig(TinySizes):
    """Sizes of a tiny Llama.

    Attributes:
        num_heads: query heads; d_model must divide by it, into an even width.
        num_key_value_heads: heads of keys and values, which num_heads must divide by.
        max_length: longest input in tokens.
        tied: the output head shares the input embedding, as in SmolLM2 and the small Llama 3.2.
        initializer_range: standard deviation of the weights; Llama's 0.02 is made for a width of 4096.
    """

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
class TinyLongformerConfig(TinySizes):
    """Sizes of a tiny Longformer.

    Attributes:
        max_length: longest input in tokens, special tokens included.
        attention_window: keys that a token sees, half of them on each side; even, at least 4. transformers pads inputs
            to a multiple of it, so small is fast.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
    """

    max_length: Annotated[int, at_least(8)] = 1024
    attention_window: int = 64
    dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_window < 4 or self.attention_window % 2:
            raise ConfigError(f"attention_window must be even and at least 4, got {self.attention_window}")


@dataclass(frozen=True)
class TinyBertConfig(TinySizes):
    """Sizes of a tiny BERT.

    Attributes:
        max_length: longest input in tokens, special tokens included.
        dropout_rate: of hidden states and attention; 0 learns fastest from scratch.
        initializer_range: standard deviation of the random weights. BERT's own 0.02 is made for a width of 768; a
            narrow model needs a larger one to begin to learn at all.
        structured: begin with attention to near positions and to equal words (`structure_attention`); needs an even
            number of heads. Without it a model from scratch does not learn to compare words in minutes.
    """

    d_ff: int = 256
    max_length: Annotated[int, at_least(8)] = 512
    dropout_rate: Annotated[float, at_least(0), below(1)] = 0.0
    initializer_range: Annotated[float, above(0)] = 0.1
    structured: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structured and self.num_heads % 2:
            raise ConfigError(f"structured needs an even number of heads, got {self.num_heads}")


def _strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value; object keys are no text, and neither are ids."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "id":
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def read_corpus(files: str | Path | Sequence[str | Path]) -> list[str]:
    """The texts of data files: every string but ids of a `.json` or `.jsonl` file, every line of any other file.

    Raises:
        DataError: a file is missing, damaged or holds no text.
    """
    paths = [files] if isinstance(files, (str, Path)) else list(files)
    texts: list[str] = []
    for path in map(Path, paths):
        before = len(texts)
        if path.suffix == ".jsonl":
            texts.extend(text for row in read_jsonl(path) for text in _strings(row))
        elif path.suffix == ".json":
            texts.extend(_strings(read_json(path)))
        else:
            try:
                texts.extend(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
            except (FileNotFoundError, IsADirectoryError):
                raise DataError("no such file", file=path) from None
            except UnicodeDecodeError as error:
                raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
        if len(texts) == before:
            raise DataError("holds no text to build a vocabulary from", file=path)
    if not texts:
        raise ConfigError("building a tokenizer needs at least one corpus file, got none")
    return texts


@dataclass(frozen=True)
class MakeTinyModels(Settings):
    """What `finegrained make-tiny-models` runs.

    Attributes:
        data: corpus file or files (QA-FEEDBACK or FactWorld JSON, JSON lines or plain text).
        output_dir: where `t5/`, `gpt2/`, `llama/`, `longformer/` and `bert/` are written.
        seed: of the random weights.
        tokenizer: `word` or `bpe`.
        vocab_size: upper limit of the vocabulary in tokens.
        lowercase: read all texts as lower case.
        t5: sizes of the T5.
        gpt2: sizes of the GPT-2.
        llama: sizes of the Llama.
        longformer: sizes of the Longformer.
        bert: sizes of the BERT.
    """

    data: InputFile | Path | Sequence[InputFile | Path]
    output_dir: OutputDirectory | Path
    seed: Seed = 0
    tokenizer: TokenizerKind = "word"
    vocab_size: int = 8000
    lowercase: bool = False
    t5: TinyT5Config = field(default_factory=TinyT5Config)
    gpt2: TinyGPT2Config = field(default_factory=TinyGPT2Config)
    llama: TinyLlamaConfig = field(default_factory=TinyLlamaConfig)
    longformer: TinyLongformerConfig = field(default_factory=TinyLongformerConfig)
    bert: TinyBertConfig = field(default_factory=TinyBertConfig)

    def run(self) -> dict[str, Path]:
        """Build and write the models; prints where they lie and how large they are."""
        from finegrained_rlhf.models.tiny_networks import make_tiny_models

        directories = make_tiny_models(
            read_corpus(self.data),
            self.output_dir,
            self.seed,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            lowercase=self.lowercase,
            t5=self.t5,
            gpt2=self.gpt2,
            llama=self.llama,
            longformer=self.longformer,
            bert=self.bert,
        )
        for name, directory in directories.items():
            config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            print(f"{name}: {directory} (vocabulary {config['vocab_size']})")
        return directories
