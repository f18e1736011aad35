"""Tiny models and tokenizers built from a corpus, in the ordinary Hugging Face layout."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "MakeTinyModels": "make",
        "TinyBertConfig": "config",
        "TinyGPT2Config": "config",
        "TinyLlamaConfig": "config",
        "TinyLongformerConfig": "config",
        "TinyT5Config": "config",
    },
)
