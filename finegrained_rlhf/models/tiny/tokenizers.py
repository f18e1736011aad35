"""Tokenizers built from a text corpus, in the layouts that T5, causal models and encoders read."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny.config import TokenizerKind

SPACE = "▁"
SPECIALS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>", "mask_token": "<mask>"}
TEMPLATE_WORDS = "question: context: wikipage: title: text: passage | answer: ."
_WORD = rf"{SPACE}?\w+|{SPACE}?[^\w\s{SPACE}]|{SPACE}|\s"


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
