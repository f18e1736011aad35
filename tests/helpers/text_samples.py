"""Texts and tokenizers that the text tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The lake is 12 km long, 3 km wide; its water is cold! Who swims there? Nobody does, as far as we know.",
    "Bloom is the second studio album by Troye Sivan, released on 31 August 2018 through EMI Australia.",
    'He said: "It is 3.5 m high", and (as Dr. Smith wrote) nobody believed him... The End.',
    "Größe und Höhe — naïve café 東京 は 大きい 🙂 👩‍👩‍👧 e\u0301 ﬁ ½ Ω≈ç√",
    "one",
    "an unfinished answer that stops in the middle of a",
    "two  spaces and a tab\there, a line\nbreak and a no\u00a0break space, then more words follow here.",
]
AWKWARD = [
    "",
    " ",
    "\n\t ",
    "word",
    ".",
    "!?,;",
    ", , , , , , , , , ,",
    "Yes! No? Maybe, maybe; a b c d e f g h i j.",
    " leading space. trailing space ",
    "No final stop",
    "a.b.c! d?e",
    "🙂",
    "e\u0301e\u0301 e\u0301! 👩‍👩‍👧, and so on and so on and so on.",
    "عربي، نص. 東京は大きい。とても！",
    "\u200b zero width \ufeff mark.",
    "line one\nline two\n\nline three, with a comma and then many more words.",
    "U.S. law vs. Mr. X, e.g. in 3.5 of 10 cases; see no. 4 for all of the details.",
    "a\x1cb \x85 c",
]
KINDS = ("bpe", "unigram", "word")

_ALPHABET = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from(list(" .,;!?\n\"'abcdeXYZ019é東🙂\u0301\u200d")),
)
WORDS = st.lists(
    st.sampled_from("the a lake is wide, long; deep! cold? Dr. 3.5 who there. café 東京 🙂 no, yes! and so".split()),
    max_size=60,
)
TEXTS = st.one_of(st.text(_ALPHABET, max_size=80), WORDS.map(" ".join), st.sampled_from(AWKWARD + CORPUS))


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A small tokenizer trained on `CORPUS`: byte-level BPE, unigram with metaspace, or whole words with metaspace."""
    specials = ["<pad>", "</s>", "<unk>", "<sep>"]
    if kind == "bpe":
        built = Tokenizer(models.BPE())
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    elif kind == "unigram":
        built = Tokenizer(models.Unigram())
        built.pre_tokenizer = pre_tokenizers.Metaspace()
        built.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=specials, unk_token="<unk>")
    else:
        built = Tokenizer(models.WordLevel(unk_token="<unk>"))
        built.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Split(Regex(r"▁?\w+|▁?[^\w\s▁]|▁"), "isolated")]
        )
        built.decoder = decoders.Metaspace()
        trainer = trainers.WordLevelTrainer(special_tokens=specials)
    built.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=built, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", sep_token="<sep>"
    )
