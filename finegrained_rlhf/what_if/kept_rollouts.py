"""Rollouts that a PPO run kept (`samples/step_N.jsonl`), as the records that training made them from.

Joins the records of `training.ppo.metrics` to tensors. Knows no reward model and no policy: token ids are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores, pad_rows
from finegrained_rlhf.feedback.records import require
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import (
    QUANTITIES,
    SampleRecord,
    SampleSegment,
    SampleTokens,
    read_samples,
    sample_files,
)


@dataclass(frozen=True)
class KeptStep:
    """The responses of one training step with all that their advantages follow from.

    Attributes:
        step: its number.
        beta: β of the step.
        episodes: responses of the whole step; more than R where not all were kept.
        rollout: R responses. Its log-probabilities are log π − log π_ref, so the reference's are 0; its token ids and
            those of the prompts are not kept and are 0.
        values: fp32 [R, T], V(s_t) before the update; None without a value model.
        rewards: fp32 [R, T], as trained: KL included, whitened where the configuration said so.
        advantages: fp32 [R, T], as trained.
        raw: the scorers' own values, by component.
        normalised: the same after normaliser and aggregation, by component.
        tokens: R tuples, the token that carries each segment, by component.
        corrections: R tuples (`ComponentTrace.corrections`), by component that was paid so.
    """

    step: int
    beta: float
    episodes: int
    rollout: Rollout
    values: Tensor | None
    rewards: Tensor
    advantages: Tensor
    raw: Mapping[str, SegmentScores]
    normalised: Mapping[str, SegmentScores]
    tokens: Mapping[str, Sequence[tuple[int, ...]]] = field(default_factory=dict)
    corrections: Mapping[str, Sequence[tuple[tuple[int, float], ...]]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True when every response of the step was kept."""
        return len(self.rollout.texts) == self.episodes


def kept_steps(run: RunDirectory) -> list[int]:
    """The numbers of the steps whose responses were kept, in order."""
    return list(sample_files(run))


def read_kept_step(
    run: RunDirectory, step: int, components: Sequence[str], metrics: Mapping[str, Any], *, critic: bool = True
) -> KeptStep:
    """Read what was kept of a step.

    Args:
        run: the run's directory.
        step: number of the step.
        components: names of the reward components, in the order of the configuration.
        metrics: the step's line of `metrics.jsonl`.
        critic: whether the run had a value model.

    Raises:
        DataError: the file is missing or damaged, or was written before token values were kept.
    """
    path = run.samples_path(step)
    rows = read_samples(path)
    for number, row in enumerate(rows):
        try:
            _check(row, components, [name for name in QUANTITIES if critic or name != "value"])
        except DataError as error:
            raise error.at(file=path, record=number) from None
    if not rows:
        raise DataError("holds no records, expected at least one", file=path)
    rollout = _rollout(rows)
    return KeptStep(
        step=step,
        beta=float(_number(metrics, "beta", run.metrics)),
        episodes=int(_number(metrics, "episodes_per_step", run.metrics)),
        rollout=rollout,
        values=_padded(rows, "value") if critic else None,
        rewards=_padded(rows, "reward"),
        advantages=_padded(rows, "advantage"),
        raw={name: _scores(name, rows, "raw") for name in components},
        normalised={name: _scores(name, rows, "normalised") for name in components},
        tokens={
            name: [tuple(int(segment.token or 0) for segment in row.of(name)) for row in rows] for name in components
        },
        corrections={
            name: [tuple(row.corrections.get(name, ())) for row in rows]
            for name in components
            if any(name in row.corrections for row in rows)
        },
    )


def _number(metrics: Mapping[str, Any], key: str, path: Path) -> float:
    value = metrics.get(key)
    if not is_number(value):
        raise DataError(f"expected a number, got {value!r}", file=path, record=f"step {metrics.get('step')}", field=key)
    return value


def _check(row: SampleRecord, components: Sequence[str], quantities: Sequence[str]) -> None:
    """Raise DataError unless a row holds all that is needed."""
    length = len(_tokens(row).ends)
    require(length > 0, "expected at least one token, got none", "tokens.ends")
    for key in quantities:
        require(key in _tokens(row).numbers, "missing field", f"tokens.{key}")
    known = ", ".join(sorted(components))
    for number, segment in enumerate(row.segments):
        where = f"segments[{number}]"
        for key in ("token", "normalised"):
            require(getattr(segment, key) is not None, "missing field", f"{where}.{key}")
        named = segment.component
        require(named in components, f"no such component {named!r}; the run's reward has {known}", f"{where}.component")


def _tokens(row: SampleRecord) -> SampleTokens:
    if row.tokens is None:
        raise DataError(
            "missing field: this run was trained before values and advantages were kept; train it again",
            field="tokens",
        )
    return row.tokens


def _rollout(rows: Sequence[SampleRecord]) -> Rollout:
    prompts: list[Prompt] = []
    index: list[int] = []
    for row in rows:
        if not prompts or row.id != prompts[-1].id:
            prompts.append(Prompt(row.id, row.prompt, ()))
        index.append(len(prompts) - 1)
    ends = [tuple(_tokens(row).ends) for row in rows]
    ids, mask = pad_rows([[0] * len(row) for row in ends], 0)
    prompt_ids, prompt_mask = pad_rows([()] * len(prompts), 0)
    return Rollout(
        prompts=prompts,
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_index=torch.tensor(index),
        sample_index=torch.tensor([row.sample for row in rows]),
        decoding_index=torch.zeros(len(rows), dtype=torch.long),
        decodings=(),
        response_ids=ids,
        response_mask=mask,
        logprobs=_padded(rows, "kl"),
        texts=[row.text for row in rows],
        token_ends=ends,
    )


def _padded(rows: Sequence[SampleRecord], key: str) -> Tensor:
    """fp32 [R, T] from the lists of the rows, 0 at padding."""
    parts = [torch.tensor(_tokens(row).numbers[key], dtype=torch.float32) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


def _scores(name: str, rows: Sequence[SampleRecord], key: Literal["raw", "normalised"]) -> SegmentScores:
    by_row = [row.of(name) for row in rows]
    return SegmentScores(
        [tuple((segment.start, segment.end) for segment in segments) for segments in by_row],
        [tuple(float(getattr(segment, key)) for segment in segments) for segments in by_row],
        all(_is_whole(row, s) or name in row.unscored for row, s in zip(rows, by_row, strict=True)),
        frozenset(number for number, row in enumerate(rows) if name in row.unscored),
    )


def _is_whole(row: SampleRecord, segments: Sequence[SampleSegment]) -> bool:
    """True when a component gave one value for the response as a whole."""
    if len(segments) != 1 or (segments[0].start, segments[0].end) != (0, len(row.text)):
        return False
    return segments[0].token == len(_tokens(row).ends) - 1
