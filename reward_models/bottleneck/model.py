"""The bottleneck: a frozen encoder, five small heads, and what they say of the segments of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import AutoModel

from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.core.files import read_json, sha256_of, write_json
from finegrained_rlhf.core.records import pad_rows
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.metrics.stress import weights_digest
from finegrained_rlhf.models.encoders.model import input_limit, open_encoder
from finegrained_rlhf.models.loading import load_tokenizer, load_weights, model_directory, read_model_config
from finegrained_rlhf.text.segmentation import SpacySegmenter, Span, shared_segmenter
from finegrained_rlhf.text.templates import PassageText
from reward_models.bottleneck.features import COMPLETENESS, FACTUALITY, NEED, RELEVANCE, Array, Source
from reward_models.encoders.models import is_causal
from reward_models.kinds import KINDS
from reward_models.record import NAMED_SEGMENTERS, may_name

RECORD, HEADS = "bottleneck.json", "heads.safetensors"
COMPONENTS = tuple(KINDS)
"""The components of a bottleneck: QA-FEEDBACK's kinds of reward model."""
RELEVANT, TRUE, COMPLETE, PREFERRED = COMPONENTS
PREFERENCE = (RELEVANT, TRUE, COMPLETE)
"""What the preference head weighs: the means of the first two over segments, and the third."""
_KNOWN = 1 << 15
_TOKENS = 128


class SentenceEncoder:
    """Unit vectors of texts by a pretrained model whose weights stay as they are; each text is read once.

    Hidden states are averaged. Those of a decoder-only model are weighted by their positions, since the first ones have
    read hardly anything of the text (Muennighoff, 2022: SGPT).

    Args:
        path: directory of an encoder or a decoder-only model, or a Hub name.

    Attributes:
        known: vectors by text, float32 [D]; the oldest go where there are too many.

    Raises:
        ModelError: there is none.
    """

    def __init__(self, path: str) -> None:
        directory = model_directory(path, export="model")
        self._causal = is_causal(read_model_config(directory))
        self._network = load_weights(AutoModel, directory, torch.float32) if self._causal else open_encoder(directory)
        self._network.eval()
        self._tokenizer = load_tokenizer(directory)
        self._limit = input_limit(self._network.config, self._tokenizer, _TOKENS)
        whole = directory / "model.safetensors"  # absent where the weights stand in several files
        self.digest = sha256_of(whole) if whole.is_file() else str(weights_digest(directory))
        self.known: dict[str, np.ndarray] = {}

    def to(self, device: torch.device | str) -> SentenceEncoder:
        """Move the weights."""
        self._network.to(device)
        return self

    def __call__(self, texts: Sequence[str]) -> Array:
        """Vectors of n ≥ 1 texts, [n, D]."""
        new = sorted(dict.fromkeys(text for text in texts if text not in self.known), key=len)
        for start in range(0, len(new), 32):
            self._read(new[start : start + 32])
        vectors = np.array([self.known[text] for text in texts], np.float64)
        while len(self.known) > _KNOWN:
            del self.known[next(iter(self.known))]
        return vectors

    @torch.no_grad()
    def _read(self, texts: Sequence[str]) -> None:
        rows = self._tokenizer(list(texts), truncation=True, max_length=self._limit)["input_ids"]
        rows = [row or [self._tokenizer.eos_token_id or 0] for row in rows]  # of white space some have no token
        ids, mask = (part.to(self._network.device) for part in pad_rows(rows, self._tokenizer.pad_token_id or 0))
        with torch.autocast(self._network.device.type, enabled=False):  # the same vectors as in training
            hidden = self._network(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask.cumsum(1) * mask if self._causal else mask
        pooled = (hidden * weights[:, :, None]).sum(1) / weights.sum(1, keepdim=True)
        self.known.update(zip(texts, torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy(), strict=True))


@dataclass(frozen=True)
class Head:
    """A linear function of features.

    Attributes:
        weights: float64 [F].
        bias: 0 where only differences matter.
    """

    weights: Array
    bias: float = 0.0

    def __call__(self, rows: Array) -> Array:
        """Of rows [..., F], [...]."""
        return np.asarray(rows @ self.weights + self.bias)


def relative(logits: Array) -> Array:
    """Probabilities of a softmax as shares of the largest one, [N] in (0, 1]."""
    return np.asarray(np.exp(logits - logits.max(initial=-np.inf)))


@dataclass(frozen=True)
class BottleneckRecord:
    """What is saved beside the heads.

    Attributes:
        encoder: directory or Hub name of the frozen encoder.
        digest: SHA-256 of its weights.
        segmenter: `rules`, `english` or a spaCy pipeline.
        moments: of completeness and preference, mean and standard deviation of the scores of the training answers.
    """

    encoder: str
    digest: str
    segmenter: str
    moments: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class Bottleneck:
    """A reward model of relevance, factuality, completeness and preference.

    Args:
        record: what it is.
        encoder: the frozen encoder.
        heads: of `need` and of each component; may be filled later.
        remembered: questions, and pieces of answers, whose features are kept; None keeps all.
    """

    def __init__(
        self,
        record: BottleneckRecord,
        encoder: SentenceEncoder,
        heads: Mapping[str, Head],
        remembered: int | None = 1024,
    ) -> None:
        self.record, self.encoder, self.heads = record, encoder, dict(heads)
        self.segmenter: SpacySegmenter = shared_segmenter(record.segmenter)
        self._held: dict[Source, Array] = {}
        self._source = lru_cache(maxsize=remembered)(self._new_source)
        self._need = lru_cache(maxsize=remembered)(self._new_need)
        self._rows = lru_cache(maxsize=remembered)(self._new_rows)

    def source(self, question: str, passages: Sequence[PassageText]) -> Source:
        """A question with its passages as the heads read it."""
        return self._source(question, tuple((one.title, tuple(self._sentences(one))) for one in passages))

    def _sentences(self, passage: PassageText) -> Sequence[str]:
        if isinstance(passage, Passage) and len(passage.sentences) > 1:
            return passage.sentences
        return [passage.text[start:end] for start, end in self.segmenter.sentences(passage.text)]

    def _new_source(self, question: str, passages: Sequence[tuple[str, Sequence[str]]]) -> Source:
        return Source(question, passages, self.encoder)

    def set_need(self, head: Head) -> None:
        """Take another head of what is needed; what was read with the one before is forgotten."""
        self.heads["need"] = head
        self.hold({})

    def hold(self, needs: Mapping[Source, Array]) -> None:
        """Take what is needed of some questions as given, [N] in [0, 1] of each, until this is called again."""
        self._held = dict(needs)
        self._need.cache_clear()
        self._rows.cache_clear()

    def need(self, source: Source) -> Array:
        """How much each of N sentences is needed, [N] in [0, 1]: of the most needed one 1."""
        return self._need(source)

    def _new_need(self, source: Source) -> Array:
        return self._held[source] if source in self._held else relative(self.heads["need"](source.need_rows))

    def cut(self, component: str, answer: str) -> list[Span]:
        """The segments that a component judges: sentences for factuality, else sub-sentences."""
        segmenter = self.segmenter
        return segmenter.sentences(answer) if component == TRUE else segmenter.sub_sentences(answer)

    def segment_rows(self, component: str, source: Source, segments: Sequence[str]) -> Array:
        """What the head of relevance or factuality reads of M segments, [M, F]."""
        return self._rows(component, source, tuple(segments))

    def _new_rows(self, component: str, source: Source, segments: tuple[str, ...]) -> Array:
        if component == TRUE:
            return source.factuality_rows(segments)
        read = source.relevance_rows if component == RELEVANT else source.completeness_row
        return read(self.need(source), segments)

    def errors(self, component: str, source: Source, segments: Sequence[str]) -> Array:
        """Probabilities of an error of relevance or factuality in M segments, [M]."""
        return np.asarray(1 / (1 + np.exp(-self.heads[component](self.segment_rows(component, source, segments)))))

    def features(self, component: str, source: Source, answer: str) -> Array:
        """What the head of completeness or preference reads of a whole answer."""
        texts = {name: [answer[a:b] for a, b in self.cut(name, answer)] for name in PREFERENCE}
        row = self._rows(COMPLETE, source, tuple(texts[COMPLETE]))
        if component == COMPLETE:
            return row
        wrong = [self.errors(name, source, texts[name]) for name in PREFERENCE[:2]]
        means = [1 - 2 * float(of.mean()) if len(of) else -1.0 for of in wrong]
        return np.array([*means, float(self.heads[COMPLETE](row))])

    def score(self, component: str, source: Source, answer: str) -> float:
        """The raw score of a whole answer, in logits: of completeness or preference."""
        return float(self.heads[component](self.features(component, source, answer)))

    @property
    def weights(self) -> dict[str, float]:
        """The weights of a reward of three components that orders answers as `preference` does."""
        by_name = dict(zip(PREFERENCE, map(float, self.heads[PREFERRED].weights), strict=True))
        return {**by_name, COMPLETE: by_name[COMPLETE] * self.record.moments[COMPLETE][1]}

    def save(self, directory: Path) -> None:
        """Write heads and record; the encoder stays where it is."""
        save_file(
            {
                f"{name}.{part}": np.atleast_1d(np.asarray(getattr(head, part), np.float64))
                for name, head in self.heads.items()
                for part in ("weights", "bias")
            },
            directory / HEADS,
        )
        write_json(directory / RECORD, asdict(self.record))
        write_json(directory / "config.json", {"model_type": "bottleneck"})


def bottleneck_directory(path: str | Path) -> Path | None:
    """The directory of a saved bottleneck: `path` or, of a run, its `model`; None where there is none."""
    return next((place for place in (Path(path), Path(path) / "model") if (place / RECORD).is_file()), None)


def read_bottleneck(path: str | Path) -> tuple[Path, BottleneckRecord, dict[str, Head]]:
    """Directory, record and heads of a saved bottleneck.

    Raises:
        ModelError: there is none, or it is damaged.
    """
    directory = bottleneck_directory(path)
    if directory is None:
        raise ModelError(f"{path}: no bottleneck here (expected {RECORD}, or a run with model/{RECORD})")
    try:
        raw = read_json(directory / RECORD)
        moments = {name: (float(mean), float(std)) for name, (mean, std) in raw["moments"].items()}
        record = BottleneckRecord(str(raw["encoder"]), str(raw["digest"]), str(raw["segmenter"]), moments)
        if not {COMPLETE, PREFERRED} <= moments.keys() or not np.isfinite(list(moments.values())).all():
            raise ValueError(f"moments of {COMPLETE} and {PREFERRED}, two numbers each")
    except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{directory / RECORD}: not the record of a bottleneck ({error})") from None
    if not may_name(record.segmenter):
        raise ModelError(f"{directory / RECORD}: segmenter: {record.segmenter!r}: a record may name {NAMED_SEGMENTERS}")
    read = (RELEVANCE, FACTUALITY, COMPLETENESS, PREFERENCE)
    sizes: dict[str, int | None] = {"need": None, **dict(zip(COMPONENTS, map(len, read), strict=True))}
    try:
        saved = load_file(directory / HEADS)
        heads = {name: Head(saved[f"{name}.weights"], float(saved[f"{name}.bias"][0])) for name in sizes}
    except (OSError, SafetensorError, KeyError, IndexError) as error:
        raise ModelError(f"{directory / HEADS}: not the heads of a bottleneck ({error})") from None
    for name, size in sizes.items():
        shape = heads[name].weights.shape
        wrong = shape[0] <= sum(NEED.values()) if size is None and len(shape) == 1 else shape != (size,)
        if wrong or not np.isfinite(heads[name].weights).all():
            raise ModelError(f"{directory / HEADS}: {name} of shape {list(shape)}, or not finite")
    return directory, record, heads


def load_bottleneck(path: str, device: Any = "cpu") -> Bottleneck:
    """A saved bottleneck with its encoder on a device; components of one directory share it.

    Raises:
        ModelError: it is missing or damaged, or its encoder is missing or another one than in training.
    """
    directory = read_bottleneck(path)[0]
    return _loaded(directory, sha256_of(directory / HEADS) + sha256_of(directory / RECORD), device)


@lru_cache(maxsize=4)
def _loaded(directory: Path, digest: str, device: Any) -> Bottleneck:
    """Once for each state of a directory: its `digest` is another where it was trained anew."""
    _, record, heads = read_bottleneck(directory)
    encoder = SentenceEncoder(record.encoder).to(device)
    if encoder.digest != record.digest:
        raise ModelError(f"{directory}: was trained on another encoder than the one in {record.encoder} (its digest)")
    return Bottleneck(record, encoder, heads)
