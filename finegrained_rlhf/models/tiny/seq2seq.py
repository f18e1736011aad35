"""Tiny models and tokenizers built from a text corpus and saved in the ordinary Hugging Face layout.

Knows tokenizers, transformers' configuration classes and how to read words out of a data file. Knows no task and no
training: the weights are transformers' own random initialisation under a seed, so that one `from_pretrained` path
serves a tiny model and a real one.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LongformerConfig,
    LongformerForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny.t5_start import structure_t5

SPACE = "▁"
SPECIALS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>", "mask_token": "<mask>"}
TEMPLATE_WORDS = "question: context: wikipage: title: text: passage | answer: ."
_WORD = rf"{SPACE}?\w+|{SPACE}?[^\w\s{SPACE}]|{SPACE}|\s"

TokenizerKind = Literal["word", "bpe"]


@dataclass(frozen=True)
class TinyT5Config:
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
    """

    d_model: int = 64
    d_ff: int = 256
    num_layers: int = 2
    num_heads: int = 4
    gated: bool = False
    tied: bool = True
    dropout_rate: float = 0.1
    structured: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.structured and self.num_heads < 3:
            raise ConfigError(f"structured needs three heads or more, got {self.num_heads}")


@dataclass(frozen=True)
class TinyGPT2Config:
    """Sizes of a tiny GPT-2: width, layers, heads and the longest input in tokens."""

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    max_length: int = 1024

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.max_length, self.num_layers, self.num_heads)


@dataclass(frozen=True)
class TinyLongformerConfig:
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
    max_length: int = 1024
    attention_window: int = 64
    dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self.d_model, self.d_ff, self.num_layers, self.num_heads)
        if self.attention_window < 4 or self.attention_window % 2:
            raise ConfigError(f"attention_window must be even and at least 4, got {self.attention_window}")
        if self.max_length < 8:
            raise ConfigError(f"max_length must be at least 8 tokens, got {self.max_length}")


def check_sizes(width: int, inner: int, layers: int, heads: int) -> None:
    """Raise ConfigError unless all sizes are positive and the heads divide the width."""
    if min(width, inner, layers, heads) < 1 or width % heads:
        raise ConfigError(
            f"sizes must be positive and the width a multiple of the heads, got width {width}, inner size {inner}, "
            f"{layers} layers, {heads} heads"
        )


def split_words(text: str) -> list[str]:
    """The words, punctuation marks and white space that the word-level tokenizer sees; a leading space is `▁`."""
    marked = text.replace(" ", SPACE)
    return re.findall(_WORD, marked if marked.startswith(SPACE) or not marked else SPACE + marked)


def _word_level(corpus: Iterable[str], vocab_size: int) -> Tokenizer:
    """Word-level tokenizer over the most frequent words (ties by spelling), `▁` standing for a leading space."""
    counts = Counter(word for text in corpus for word in split_words(text))
    always = {SPACE, *split_words(TEMPLATE_WORDS)}
    words = sorted(always | counts.keys(), key=lambda word: (word not in always, -counts[word], word))
    specials = list(SPECIALS.values())
    vocabulary = {word: i for i, word in enumerate(specials + words[: vocab_size - len(specials)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIALS["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(_WORD), behavior="isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _byte_level_bpe(corpus: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE; no text is unknown to it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def build_tokenizer(
    corpus: Iterable[str],
    kind: TokenizerKind = "word",
    vocab_size: int = 8000,
    max_length: int | None = None,
    lowercase: bool = False,
) -> PreTrainedTokenizerFast:
    """A fast tokenizer from a corpus, in the T5 layout (`</s>` is appended).

    Ids: 0 `<pad>`, 1 `</s>` (end of sequence and separator), 2 `<unk>`, 3 `<s>` (start and class), 4 `<mask>`.
    Decoding gives back the text exactly, punctuation and white space included, as long as every word is known, the
    text does not begin with a space (word level) and does not hold the character `▁`. The words of the project's
    prompt templates are always part of a word-level vocabulary.

    Args:
        corpus: texts.
        kind: `word` (words, punctuation marks and white space are tokens) or `bpe` (byte-level BPE).
        vocab_size: upper limit of the vocabulary, special tokens included.
        max_length: `model_max_length` of the tokenizer in tokens; None leaves it unlimited.
        lowercase: read all texts as lower case; decoding then gives lower case.

    Raises:
        ConfigError: unknown kind or no room for a vocabulary.
    """
    if kind not in ("word", "bpe"):
        raise ConfigError(f"tokenizer kind must be 'word' or 'bpe', got {kind!r}")
    smallest = len(SPECIALS) + (256 if kind == "bpe" else 32)
    if vocab_size < smallest:
        raise ConfigError(f"vocab_size must be at least {smallest} for kind {kind!r}, got {vocab_size}")
    corpus = (text.lower() for text in corpus) if lowercase else corpus
    core = _word_level(corpus, vocab_size) if kind == "word" else _byte_level_bpe(corpus, vocab_size)
    if lowercase:
        core.normalizer = normalizers.Lowercase()
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return wrap_tokenizer(core, max_length)


def wrap_tokenizer(core: Tokenizer, max_length: int | None) -> PreTrainedTokenizerFast:
    """The transformers tokenizer around a `tokenizers` one."""
    limit: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        **SPECIALS,
        sep_token=SPECIALS["eos_token"],
        bos_token=SPECIALS["cls_token"],
        clean_up_tokenization_spaces=False,
        **limit,
    )


def encoder_tokenizer(tokenizer: PreTrainedTokenizerFast, max_length: int) -> PreTrainedTokenizerFast:
    """The same vocabulary in the Longformer layout: `<s> … </s>`, at most `max_length` tokens."""
    core = copy.deepcopy(tokenizer.backend_tokenizer)
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 3), ("</s>", 1)]
    )
    return wrap_tokenizer(core, max_length)


def causal_tokenizer(tokenizer: PreTrainedTokenizerFast, max_length: int) -> PreTrainedTokenizerFast:
    """The same vocabulary for a causal model: no special token is added, padding goes to the left."""
    core = copy.deepcopy(tokenizer.backend_tokenizer)
    core.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    causal = wrap_tokenizer(core, max_length)
    causal.padding_side = "left"
    return causal


def build_t5(
    tokenizer: PreTrainedTokenizerFast, config: TinyT5Config | None = None, seed: int = 0
) -> T5ForConditionalGeneration:
    """A randomly initialised T5 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyT5Config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokenizer),
                d_model=config.d_model,
                d_kv=config.d_model // config.num_heads,
                d_ff=config.d_ff,
                num_layers=config.num_layers,
                num_decoder_layers=config.num_layers,
                num_heads=config.num_heads,
                feed_forward_proj="gated-gelu" if config.gated else "relu",
                tie_word_embeddings=config.tied,
                dropout_rate=config.dropout_rate,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                decoder_start_token_id=tokenizer.pad_token_id,
            )
        )
        if not config.tied:  # transformers 5 ties a T5 whatever its configuration says, unless a file holds both
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * config.d_model**-0.5)
        if config.structured:
            structure_t5(model)
    return model.eval()


def build_gpt2(
    tokenizer: PreTrainedTokenizerFast, config: TinyGPT2Config | None = None, seed: int = 0
) -> GPT2LMHeadModel:
    """A randomly initialised GPT-2 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyGPT2Config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(tokenizer),
                n_positions=config.max_length,
                n_embd=config.d_model,
                n_layer=config.num_layers,
                n_head=config.num_heads,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
    return model.eval()


def build_longformer(
    tokenizer: PreTrainedTokenizerFast, config: TinyLongformerConfig | None = None, seed: int = 0
) -> LongformerForMaskedLM:
    """A randomly initialised Longformer for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyLongformerConfig()
    if tokenizer.pad_token_id is None:
        raise ConfigError("a Longformer needs a tokenizer with a padding token")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LongformerForMaskedLM(
            LongformerConfig(
                vocab_size=len(tokenizer),
                hidden_size=config.d_model,
                intermediate_size=config.d_ff,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                attention_window=[config.attention_window] * config.num_layers,
                max_position_embeddings=config.max_length + tokenizer.pad_token_id + 1,
                type_vocab_size=1,
                hidden_dropout_prob=config.dropout_rate,
                attention_probs_dropout_prob=config.dropout_rate,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                sep_token_id=tokenizer.sep_token_id,
            )
        )
    return model.eval()
