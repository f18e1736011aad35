"""What an edit's cost is counted in: words and marks, NLTK's words (PRELUDE's code) or tiktoken's tokens (its paper).

The first needs nothing; the others are imported when they are named.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import words_and_marks
from finegrained_rlhf.personalization.span_feedback import Tokenise

COST_TOKENS = ("words", "nltk", "tiktoken")
"""`words` is the default: it needs neither a package nor a download."""
_ENCODING = "cl100k_base"  # of GPT-4, the paper's agent


def cost_tokeniser(name: str) -> Tokenise:
    """The tokens of a name.

    Args:
        name: one of `COST_TOKENS`. `nltk` is `word_tokenize`, which needs NLTK's data `punkt_tab`; `tiktoken` is
            GPT-4's encoding, which tiktoken downloads once.

    Raises:
        ConfigError: no such name, or what it needs is not there.
    """
    if name == "words":
        return words_and_marks
    if name not in COST_TOKENS:
        raise ConfigError(f"cost_tokens: expected one of {', '.join(COST_TOKENS)}, got {name!r}")
    try:
        if name == "nltk":
            split: Any = import_module("nltk").word_tokenize
        else:
            split = import_module("tiktoken").get_encoding(_ENCODING).encode_ordinary
        split("A text.")
    except ImportError:
        raise ConfigError(f"cost_tokens={name}: {name} is not installed: pip install {name}, or use words") from None
    except (LookupError, OSError, ValueError) as error:  # NLTK finds no data; tiktoken no file and no network
        data = "python -m nltk.downloader punkt_tab" if name == "nltk" else "set TIKTOKEN_CACHE_DIR to a filled cache"
        raise ConfigError(f"cost_tokens={name}: its data are not there ({type(error).__name__}): {data}") from None
    return lambda text: [str(token) for token in split(text)]
