"""Tiny models for a corpus, and their tokenizers in the layouts that T5, causal models and encoders read.

Weights are transformers' own random ones under a seed. A T5 can begin with directions and with copying, so that it
learns from little data. A BERT may have tokens that mark parts of its inputs; callers say what they mean.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LongformerConfig,
    LongformerForMaskedLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS
from finegrained_rlhf.models.encoders.model import add_markers
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.models.tiny import (
    TinyBertConfig,
    TinyGPT2Config,
    TinyLlamaConfig,
    TinyLongformerConfig,
    TinySizes,
    TinyT5Config,
    TokenizerKind,
    drawn_under,
)

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


def _tokens_of(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What a configuration of transformers takes of a tokenizer."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return {"vocab_size": len(tokenizer), **ids}


def _sizes_of(config: TinySizes) -> dict[str, int]:
    """Sizes by the names that BERT, Longformer and Llama have for them."""
    return {
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
    }


LEFT, RIGHT, NEAR, EQUAL = range(4)
"""The encoder heads that begin with a direction, and the one that begins with equal words; others begin as T5's own."""
FAR_OFF = -5.0
"""Bias of the positions that a head with a direction begins without."""
REACH = 2
"""Words on each side that the near head begins with."""


def build_t5(
    tokenizer: PreTrainedTokenizerFast, config: TinyT5Config | None = None, seed: int = 0
) -> T5ForConditionalGeneration:
    """A randomly initialised T5 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyT5Config()
    with drawn_under(seed):
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
        if config.matching:
            match_words(model)
    return model.eval()


@torch.no_grad()
def structure_t5(model: T5ForConditionalGeneration) -> None:
    """Set the weights so that the encoder tells places apart and the decoder copies from the start.

    - Position biases of the encoder: one head begins with the words on the left, one with those on the right, one with
      the nearest ones. With T5's random biases a word hardly knows what stands before it, and it takes thousands of
      examples to learn, say, which of several names is the first.
    - Cross-attention: the value weights begin as a rotation and the output weights as its inverse, so that what is
      attended to arrives unchanged, and, the head being the embedding table, as that word.

    Both can be learnt otherwise. After the finding that transformers learn from little data when value and output
    weights begin as (nearly) the identity (Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers",
    2023). Random numbers come from the global generator.

    Args:
        model: with three heads or more, as wide inside its attention as outside, and relative positions to 128 words.
    """
    config = model.config
    buckets = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [buckets, heads]
    half = config.relative_attention_num_buckets // 2  # below it: the same word and the left; from it on: the right
    buckets[:, LEFT] = buckets[:, RIGHT] = 0.0
    buckets[half:, LEFT] = FAR_OFF
    buckets[:half, RIGHT] = FAR_OFF
    buckets[:, NEAR] = FAR_OFF
    buckets[: REACH + 1, NEAR] = buckets[half + 1 : half + REACH + 1, NEAR] = 0.0
    for block in model.decoder.block:
        attention = block.layer[1].EncDecAttention
        rotation = torch.linalg.qr(torch.randn_like(attention.v.weight))[0]
        attention.v.weight.copy_(rotation)
        attention.o.weight.copy_(rotation.T)


@torch.no_grad()
def match_words(model: T5ForConditionalGeneration) -> None:
    """Set the weights so that an encoder head of every layer begins with the other places of the same word.

    Query and key weights of the head begin as the same rotation of the words (Trockman and Kolter, 2023, as
    `structure_attention` of the tiny BERT), and its position bias prefers other places to the word's own: a word that
    is nowhere else finds itself. For models from scratch that have to find which passage a question is about. It can be
    learnt otherwise. Random numbers come from the global generator.

    Args:
        model: with four heads or more.
    """
    config = model.config
    rows = slice(EQUAL * config.d_kv, (EQUAL + 1) * config.d_kv)
    for block in model.encoder.block:
        attention = block.layer[0].SelfAttention
        rotation = torch.linalg.qr(torch.randn(config.d_model, config.d_kv))[0].T
        attention.q.weight[rows] = rotation
        attention.k.weight[rows] = rotation
    buckets = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight  # [buckets, heads]
    buckets[:, EQUAL] = 0.0
    buckets[0, EQUAL] = FAR_OFF


def marked_tokenizer(
    tokenizer: PreTrainedTokenizerFast, max_length: int, markers: Sequence[str]
) -> PreTrainedTokenizerFast:
    """The same vocabulary in the layout `<s> … </s>` (class and separator token) with `markers` after it."""
    encoder = encoder_tokenizer(tokenizer, max_length)
    add_markers(encoder, markers)
    return encoder


def build_bert(
    tokenizer: PreTrainedTokenizerFast, config: TinyBertConfig | None = None, seed: int = 0
) -> BertForMaskedLM:
    """A randomly initialised BERT for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyBertConfig()
    with drawn_under(seed):
        model = BertForMaskedLM(
            BertConfig(
                vocab_size=len(tokenizer),
                max_position_embeddings=config.max_length,
                hidden_dropout_prob=config.dropout_rate,
                attention_probs_dropout_prob=config.dropout_rate,
                initializer_range=config.initializer_range,
                pad_token_id=tokenizer.pad_token_id,
                **_sizes_of(config),
            )
        )
        if config.structured:
            structure_attention(model.bert)
    return model.eval()


POSITION_GAIN, WORD_GAIN = 2.0, 1.0
"""Scale of the query and key weights: how sharply heads begin to attend to near positions, and to equal words."""
SLOWEST = 200.0
"""Slowest wave of the positions, in tokens a radian."""


@torch.no_grad()
def structure_attention(bert: BertModel) -> None:
    """Set the weights so that every layer begins with half of its heads on near positions and half on equal words.

    Positions are sine and cosine waves in the first half of the width, words random in the second half. Query and key
    weights begin as the same random rotation of one of the halves, so that attention begins as the similarity of
    positions (first heads) or of words (the other heads). Everything can still be learnt otherwise. After the finding
    that transformers learn from little data when query and key weights begin alike (Trockman and Kolter, "Mimetic
    Initialization of Self-Attention Layers", 2023). Random weights come from the global generator.
    """
    half = bert.config.hidden_size // 2
    embeddings = bert.embeddings
    for table in (embeddings.position_embeddings, embeddings.word_embeddings, embeddings.token_type_embeddings):
        table.weight.zero_()
    embeddings.position_embeddings.weight[:, :half] = position_waves(
        embeddings.position_embeddings.num_embeddings, half
    )
    embeddings.word_embeddings.weight[:, half:].normal_()
    for layer in bert.encoder.layer:
        attention = layer.attention.self
        heads, size = attention.num_attention_heads, attention.attention_head_size
        weight = torch.zeros_like(attention.query.weight)
        for head in range(heads):
            of_words = head >= heads // 2
            rotation = torch.linalg.qr(torch.randn(weight.shape[1] - half if of_words else half, size))[0].T
            columns = slice(half, None) if of_words else slice(half)
            weight[head * size : (head + 1) * size, columns] = rotation * (WORD_GAIN if of_words else POSITION_GAIN)
        attention.query.weight.copy_(weight)
        attention.key.weight.copy_(weight)


def position_waves(length: int, width: int) -> Tensor:
    """Sine and cosine waves, fp32 [length, width], mean square 1."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(SLOWEST) / width))
    return math.sqrt(2.0) * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def build_longformer(
    tokenizer: PreTrainedTokenizerFast, config: TinyLongformerConfig | None = None, seed: int = 0
) -> LongformerForMaskedLM:
    """A randomly initialised Longformer for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyLongformerConfig()
    if tokenizer.pad_token_id is None:
        raise ConfigError("a Longformer needs a tokenizer with a padding token")
    network = LongformerConfig(
        attention_window=[config.attention_window] * config.num_layers,
        max_position_embeddings=config.max_length + tokenizer.pad_token_id + 1,
        type_vocab_size=1,
        hidden_dropout_prob=config.dropout_rate,
        attention_probs_dropout_prob=config.dropout_rate,
        sep_token_id=tokenizer.sep_token_id,
        **_sizes_of(config),
        **_tokens_of(tokenizer),
    )
    with drawn_under(seed):
        return LongformerForMaskedLM(network).eval()


def build_gpt2(
    tokenizer: PreTrainedTokenizerFast, config: TinyGPT2Config | None = None, seed: int = 0
) -> GPT2LMHeadModel:
    """A randomly initialised GPT-2 for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyGPT2Config()
    sizes = {"n_embd": config.d_model, "n_layer": config.num_layers, "n_head": config.num_heads}
    network = GPT2Config(n_positions=config.max_length, **sizes, **_tokens_of(tokenizer))
    with drawn_under(seed):
        return GPT2LMHeadModel(network).eval()


def build_llama(
    tokenizer: PreTrainedTokenizerFast, config: TinyLlamaConfig | None = None, seed: int = 0
) -> LlamaForCausalLM:
    """A randomly initialised Llama for the tokenizer's vocabulary; the caller's random state is left alone."""
    config = config or TinyLlamaConfig()
    network = LlamaConfig(
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_length,
        tie_word_embeddings=config.tied,
        initializer_range=config.initializer_range,
        **_sizes_of(config),
        **_tokens_of(tokenizer),
    )
    with drawn_under(seed):
        return LlamaForCausalLM(network).eval()


def make_tiny_models(
    corpus: Iterable[str],
    output_dir: str | Path,
    seed: int,
    *,
    tokenizer: TokenizerKind = "word",
    vocab_size: int = 8000,
    lowercase: bool = False,
    t5: TinyT5Config | None = None,
    gpt2: TinyGPT2Config | None = None,
    llama: TinyLlamaConfig | None = None,
    longformer: TinyLongformerConfig | None = None,
    bert: TinyBertConfig | None = None,
) -> dict[str, Path]:
    """Write `t5/`, `gpt2/`, `llama/`, `longformer/` and `bert/` under `output_dir`, each a model with its tokenizer.

    They share one vocabulary; BERT's has the `MARKER_TOKENS` of dialogues in addition.

    Returns:
        The directory of each model by name.
    """
    output_dir = Path(output_dir)
    gpt2, llama = gpt2 or TinyGPT2Config(), llama or TinyLlamaConfig()
    longformer, bert = longformer or TinyLongformerConfig(), bert or TinyBertConfig()
    base = build_tokenizer(corpus, tokenizer, vocab_size, lowercase=lowercase)
    of_dialogues = marked_tokenizer(base, bert.max_length, MARKER_TOKENS)
    built = {
        "t5": (build_t5(base, t5, seed), base),
        "gpt2": (build_gpt2(base, gpt2, seed), causal_tokenizer(base, gpt2.max_length)),
        "llama": (build_llama(base, llama, seed), causal_tokenizer(base, llama.max_length)),
        "longformer": (build_longformer(base, longformer, seed), encoder_tokenizer(base, longformer.max_length)),
        "bert": (build_bert(of_dialogues, bert, seed), of_dialogues),
    }
    for name, (model, its_tokenizer) in built.items():
        with atomic_directory(output_dir / name) as directory, quiet_transformers():
            model.save_pretrained(directory)
            its_tokenizer.save_pretrained(directory)
    return {name: output_dir / name for name in built}
