"""A list of words that may not be written: the plainest way to steer a policy.

The rule itself is transformers' (`NoBadWordsLogitsProcessor`): of a word of several tokens the last one is barred where
the others stand before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.rollout.mixers.protocol import ready
from finegrained_rlhf.text.plain_text import plain_token_ids

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import NoBadWordsLogitsProcessor

    from finegrained_rlhf.models.policy import Policy, PromptMemory
    from finegrained_rlhf.rollout.steppers.base import OpenStepper


@dataclass
class WordList(Settings):
    """Words that the policy may not write: as given, in lower case, capitalised and in capitals.

    A word is barred as the tokenizer writes it at the beginning of a text and behind a blank. A tokenizer that writes
    a word in other ways too (behind a hyphen, say) lets those through.

    Attributes:
        words: the words themselves, or a text file with one a line.
    """

    words: str | Path | Sequence[str]
    _processor: Any = field(default=None, init=False, repr=False, compare=False)

    def setup(self, policy: Policy) -> None:
        """See `LogitsMixer.setup`. Raises DataError or ConfigError where there is no word that the tokenizer knows."""
        import torch
        from transformers import NoBadWordsLogitsProcessor

        words = _read(self.words) if isinstance(self.words, str | Path) else [word.strip() for word in self.words]
        if not words or not all(words):
            raise ConfigError("mixer.words: expected at least one word, and none that is empty")
        texts = [begin + form for word in words for form in _forms(word) for begin in ("", " ")]
        rows = dict.fromkeys(tuple(row) for row in plain_token_ids(policy.tokenizer, texts) if row)
        unknown = policy.tokenizer.unk_token_id
        known = [list(row) for row in rows if unknown is None or unknown not in row]
        if not known:
            raise ConfigError("mixer.words: the policy's tokenizer knows none of these words")
        device = str(policy.device)
        self._processor = NoBadWordsLogitsProcessor(known, list(policy.eos_ids))
        self._processor(  # its tables are made by the first call
            torch.zeros((1, 1), dtype=torch.long, device=device),
            torch.zeros((1, policy.model.config.vocab_size), device=device),
        )

    def open(self, memory: PromptMemory, samples: int, limit: int, open_stepper: OpenStepper) -> _WordListMixing:
        """See `LogitsMixer.open`."""
        import torch

        processor = ready(self._processor, "WordList")
        rows = len(memory.prompts) * samples
        return _WordListMixing(processor, torch.zeros(rows, 0, dtype=torch.long, device=memory.prompt_ids.device))


class _WordListMixing:
    def __init__(self, processor: NoBadWordsLogitsProcessor, ids: Tensor) -> None:
        self.processor, self.ids = processor, ids

    def mix(self, logits: Tensor, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Mixing.mix`. The last token of the prompt counts as what stands before; nothing earlier does."""
        import torch

        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        return self.processor(self.ids, logits.float())

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Mixing.keep`."""
        self.ids = self.ids[rows]


def _forms(word: str) -> Iterable[str]:
    return dict.fromkeys((word, word.lower(), word.capitalize(), word.upper()))


def _read(path: str | Path) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise DataError("holds no word, expected one a line", file=path)
    return words
