"""The records that travel between the floors.

Shapes use P = prompts, N = samples a prompt, R = response rows (P·N when every prompt has N samples),
L = padded prompt length, T = padded response length, all in tokens. Masks are 1 at real tokens, 0 at padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One input of the policy.

    Attributes:
        id: unique within a data set; sampling noise is derived from it and from `occurrence`.
        text: the task text exactly as tokenised; of a prompt in pieces, what the pieces were made from.
        input_ids: token ids of `text`, special tokens included; of a prompt in pieces, of all of them in order.
        metadata: what scorers may need beside the text (`question`, `passages`, `references`).
        occurrence: how often the step has drawn this prompt so far, this draw included; from 1.
        pieces: tokens of each piece that is encoded alone, in order (fusion-in-decoder); empty: one piece.
    """

    id: str
    text: str
    input_ids: tuple[int, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    occurrence: int = 1
    pieces: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.pieces and (min(self.pieces) < 1 or sum(self.pieces) != len(self.input_ids)):
            raise ValueError(f"prompt {self.id!r} of {len(self.input_ids)} tokens cannot have pieces of {self.pieces}")

    @property
    def draw(self) -> str:
        """The name of this draw, from which its noise follows: the id, and from the second occurrence on its number."""
        return self.id if self.occurrence == 1 else f"{self.id}\0{self.occurrence}"


@dataclass(frozen=True)
class Greedy:
    """Decoding that takes the most probable token. One response a prompt."""

    @property
    def samples(self) -> int:
        """Responses a prompt."""
        return 1


@dataclass(frozen=True)
class Sample:
    """Seeded sampling.

    Attributes:
        n: responses a prompt.
        temperature: divides the logits; > 0.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p; 1.0 keeps all.
    """

    n: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.n < 1 or self.temperature <= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"need n >= 1, temperature > 0, top_k >= 0 and 0 < top_p <= 1, got {self}")

    @property
    def samples(self) -> int:
        """Responses a prompt."""
        return self.n

    @property
    def plain(self) -> bool:
        """Whether tokens are drawn from the softmax of the logits as they are."""
        return self.temperature == 1.0 and not self.truncated

    @property
    def truncated(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k > 0 or self.top_p < 1.0


Decoding = Greedy | Sample


@dataclass(frozen=True)
class Turns:
    """How a response came about in turns: what the policy wrote of it, and what an environment said in between.

    Attributes:
        tokens: (first, end) of the tokens of each turn of the policy, end exclusive; between them are the environment's
            messages as the chat template writes them. The last turn ends the response.
        spans: (start, end) of each turn in characters of the response.
        messages: what the environment said behind each turn but the last, as `role` and `content`.
        failed: whether the environment broke after the last turn.
    """

    tokens: tuple[tuple[int, int], ...]
    spans: tuple[tuple[int, int], ...]
    messages: tuple[Mapping[str, str], ...] = ()
    failed: bool = False


@dataclass(frozen=True)
class Rollout:
    """Responses to a batch of prompts.

    Attributes:
        prompts: the P prompts.
        prompt_ids: int64 [P, L], padded.
        prompt_mask: int64 [P, L].
        prompt_index: int64 [R], the prompt of each row; rows of one prompt are contiguous.
        sample_index: int64 [R], the number of the sample within (prompt, decoding).
        decoding_index: int64 [R], which entry of `decodings` made the row.
        decodings: the decodings that were asked for, in order.
        response_ids: int64 [R, T], the sampled ids (EOS included where it was reached), padded.
        response_mask: int64 [R, T].
        logprobs: fp32 [R, T], log-probability of each sampled token under the policy that sampled (the plain softmax
            unless the policy scores the tempered one); 0 at padding. An engine's own, until a trainer computes them
            anew by the function that it trains.
        texts: R decoded responses without special tokens.
        token_ends: R tuples; `token_ends[r][t]` is the character offset in `texts[r]` at which token t ends.
        sampler_logprobs: fp32 [R, T], what the engine had given where `logprobs` are a trainer's, of the same
            distribution; None where they are the engine's still.
        turns: of each of R responses that an environment had a part in; empty: each is one turn of the policy.
        support: int [R, T, K], the tokens that each token was drawn from, where the policy scores a truncated
            distribution (`distribution.support_of`); None where it does not, or the engine gives none.
    """

    prompts: Sequence[Prompt]
    prompt_ids: Tensor
    prompt_mask: Tensor
    prompt_index: Tensor
    sample_index: Tensor
    decoding_index: Tensor
    decodings: Sequence[Decoding]
    response_ids: Tensor
    response_mask: Tensor
    logprobs: Tensor
    texts: Sequence[str]
    token_ends: Sequence[tuple[int, ...]]
    sampler_logprobs: Tensor | None = None
    turns: Sequence[Turns] = ()
    support: Tensor | None = None

    def __post_init__(self) -> None:
        rows = self.response_ids.shape[0]
        if not (len(self.texts) == len(self.token_ends) == self.prompt_index.shape[0] == rows):
            raise ValueError(f"a rollout of {rows} rows needs as many texts, token_ends and prompt indices")
        if self.response_ids.shape != self.response_mask.shape or self.response_ids.shape != self.logprobs.shape:
            raise ValueError("response_ids, response_mask and logprobs must have one shape [R, T]")
        if self.sampler_logprobs is not None and self.sampler_logprobs.shape != self.logprobs.shape:
            raise ValueError("sampler_logprobs and logprobs must have one shape [R, T]")
        if self.support is not None and self.support.shape[:2] != self.logprobs.shape:
            raise ValueError("support must be [R, T, K], as logprobs are [R, T]")
        if self.turns and len(self.turns) != rows:
            raise ValueError(f"a rollout of {rows} rows needs as many turns, got {len(self.turns)}")

    @property
    def written(self) -> Tensor:
        """int64 [R, T]: 1 at the real tokens that the policy wrote; nothing is learnt or counted of the others."""
        import torch

        if not self.turns:
            return self.response_mask
        mask = torch.zeros(self.response_mask.shape, dtype=torch.long)
        for row, talk in enumerate(self.turns):
            for first, end in talk.tokens:
                mask[row, first:end] = 1
        return mask.to(self.response_mask.device)

    def row_prompts(self) -> list[Prompt]:
        """The prompt of each of the R rows."""
        return [self.prompts[i] for i in self.prompt_index.tolist()]

    def lengths(self) -> Tensor:
        """int64 [R]: real tokens of each response."""
        return self.response_mask.sum(dim=1)

    def turn_ends(self) -> list[tuple[int, ...]]:
        """R tuples, the last token of each turn of a response; of one turn its last real token."""
        if self.turns:
            return [tuple(end - 1 for _, end in talk.tokens) for talk in self.turns]
        return [(length - 1,) for length in self.lengths().tolist()]

    def ended(self, eos_ids: Sequence[int]) -> Tensor:
        """Bool [R]: whether each response, or its last turn, has one of these ends among its real tokens."""
        import torch

        ends = torch.as_tensor(list(eos_ids), device=self.response_ids.device)
        real = self.response_mask.bool()
        if self.turns:
            starts = torch.tensor([talk.tokens[-1][0] for talk in self.turns], device=real.device)
            real = real & (torch.arange(real.shape[1], device=real.device) >= starts[:, None])
        return (torch.isin(self.response_ids, ends) & real).any(dim=1)


@dataclass(frozen=True)
class SegmentScores:
    """What one reward component says about R responses.

    Attributes:
        spans: R tuples of (start, end) character offsets into the response text, end exclusive, in order. A scorer of
            whole responses gives one span (0, len(text)).
        values: R tuples of floats, one value a span, unweighted and in the component's own unit.
        whole_response: True when the value belongs to the whole response and goes on its last real token.
        unscored: numbers of the responses of which nothing is known: they have no span, and nothing is learnt from
            them. A response that was looked at and has no segment is none of these.
        counts: what the component counted while it scored, by name; summed over responses and processes.
    """

    spans: Sequence[tuple[tuple[int, int], ...]]
    values: Sequence[tuple[float, ...]]
    whole_response: bool = False
    unscored: frozenset[int] = frozenset()
    counts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.spans) != len(self.values):
            raise ValueError(f"{len(self.spans)} responses have spans, {len(self.values)} have values")
        for row, (spans, values) in enumerate(zip(self.spans, self.values, strict=True)):
            if len(spans) != len(values):
                raise ValueError(f"response {row} has {len(spans)} spans and {len(values)} values")
        if any(not 0 <= row < len(self.spans) or self.spans[row] for row in self.unscored):
            raise ValueError(f"responses without a score have no spans, got {sorted(self.unscored)}")

    def known(self) -> list[tuple[float, ...]]:
        """The values of the responses that have a score, in order."""
        return [values for row, values in enumerate(self.values) if row not in self.unscored]


def unscored_rows(scores: Iterable[SegmentScores]) -> frozenset[int]:
    """The numbers of the responses that some component has no score of: their reward is not known."""
    return frozenset[int]().union(*(one.unscored for one in scores))


@dataclass(frozen=True)
class ComponentTrace:
    """One component's share of the reward.

    Attributes:
        scores: the component's own output.
        weight: its weight in this step.
        raw: fp32 [R, T], values as the scorer gave them, at the token that ends each segment: where the segment is.
        normalised: fp32 [R, T], after the component's normaliser and aggregation (equal to `raw` without them), where
            it is paid: at the token that carries each segment, or as corrections.
        weighted: fp32 [R, T], weight · normalised, 0 in responses in which the component's gate is closed.
        normalised_values: R tuples, the same of each segment.
        tokens: R tuples, the token that carries each segment: the one that ends or decides it, or the response's last.
        gate: R flags, whether the component counts in a response; None where it has no gate.
        corrections: R tuples of (token, what is paid there before the weight), where the component is paid as
            corrections of the values of prefixes (`reward.credit=revised`). Each prefix has its own gate, so these hold
            it already; they add up to the sum of `normalised_values`, or to 0 where the gate is closed. None: `tokens`
            carry the segments.
    """

    scores: SegmentScores
    weight: float
    raw: Tensor
    normalised: Tensor
    weighted: Tensor
    normalised_values: Sequence[tuple[float, ...]]
    tokens: Sequence[tuple[int, ...]]
    gate: Sequence[bool] | None = None
    corrections: Sequence[tuple[tuple[int, float], ...]] | None = None

    def weight_of(self, row: int) -> float:
        """The weight in one response: 0 where the gate is closed."""
        return self.weight if self.gate is None or self.gate[row] else 0.0

    def paid_tokens(self, row: int) -> list[int]:
        """The tokens of one response at which something is paid, in order, each once."""
        paid = self.tokens[row] if self.corrections is None else (token for token, _ in self.corrections[row])
        return sorted(set(paid))


@dataclass(frozen=True)
class RewardTrace:
    """Token rewards of R responses with everything they are made of.

    Attributes:
        components: one trace a reward component, by name.
        total: fp32 [R, T], the sum of the weighted components; no KL.
        metrics: what was measured over the responses of all processes while the reward was made (constraints).
        prefixes: how many beginnings of these responses were scored beside them, each component's by itself; None where
            the reward reads none.
    """

    components: Mapping[str, ComponentTrace]
    total: Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)
    prefixes: int | None = None

    @property
    def scored(self) -> Tensor | None:
        """Bool [R], whether every component has a score of a response; None where all have."""
        import torch

        unscored = unscored_rows(component.scores for component in self.components.values())
        if not unscored:
            return None
        scored = torch.ones(len(self.total), dtype=torch.bool)
        scored[sorted(unscored)] = False
        return scored.to(self.total.device)


@dataclass(frozen=True)
class ValueHeads:
    """What several value heads said and are to learn.

    Attributes:
        values: fp32 [R, T, K] before the update.
        returns: fp32 [R, T, K], targets.
    """

    values: Tensor
    returns: Tensor


@dataclass(frozen=True)
class ImportanceWeights:
    """How the losses of tokens are weighed that another policy drew, μ, than is trained, π (`rl.importance`).

    Attributes:
        weights: fp32 [R, T] that multiply the policy loss of each token; 1 at padding.
        ratios: fp32 [R, T] π/μ before the cap; of a sequence mode the same number at all tokens of a row; 1 at padding.
        capped: bool [R, T], real tokens whose ratio was above the cap.
    """

    weights: Tensor
    ratios: Tensor
    capped: Tensor


@dataclass(frozen=True)
class Experience:
    """What a policy learns from: a rollout with everything that is held fixed during its epochs.

    Attributes:
        rollout: the responses and their behaviour log-probabilities.
        trace: their rewards.
        reference_logprobs: fp32 [R, T] under the frozen reference policy.
        values: fp32 [R, T], V(s_t) before the update; of several value heads the weighted sum. None without a value
            model.
        rewards: fp32 [R, T], trained token rewards: components − β·KL, whitened where the config says so; without the
            KL where it is part of the loss.
        advantages: fp32 [R, T], as trained, 0 at padding.
        returns: fp32 [R, T], value targets; of several value heads the weighted sum. None without a value model.
        shares: fp32 [R, T] by name, what each reward component has in the advantages, `kl` for the penalty and
            `baseline` for what is no reward's (values, subtracted means); they add up to the advantages. Empty where no
            advantages were made.
        heads: values and targets of several value heads; None where there is one or none.
        importance: weights of the policy loss where another policy drew than is trained; None weighs every token alike.
        kl: fp32 [R, T] KL from the reference over the vocabulary at each token's state; None where nobody asked for it.
        reference_states: float [R, T, D], the reference's states that predict each token; as `kl`.
        learnt: bool [R], the responses that are learnt from; None: all. One whose reward is not known, or that has no
            other to be compared with, has no part in advantages, their statistics, losses and what these are divided
            by. A KL penalty that is part of the loss needs no reward and is over all responses.
        masked: bool [R], cut responses that are paid the baseline (`rollout.truncated=masked`); None: none is. They are
            not learnt from, their advantages are 0, but what the losses are divided by counts them, and so do baselines
            and the statistics of advantages.
    """

    rollout: Rollout
    trace: RewardTrace
    reference_logprobs: Tensor
    values: Tensor | None
    rewards: Tensor
    advantages: Tensor
    returns: Tensor | None
    shares: Mapping[str, Tensor] = field(default_factory=dict)
    heads: ValueHeads | None = None
    importance: ImportanceWeights | None = None
    kl: Tensor | None = None
    reference_states: Tensor | None = None
    learnt: Tensor | None = None
    masked: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """int64 [R, T]: 1 at the tokens that the policy wrote in responses that are learnt from."""
        return learnt_tokens(self.rollout.written, self.learnt)

    @property
    def counted(self) -> Tensor:
        """int64 [R, T]: what the losses are divided by: `mask`, and the tokens of masked responses."""
        if self.learnt is None or self.masked is None:
            return self.mask
        return learnt_tokens(self.rollout.written, self.learnt | self.masked)


def learnt_tokens(mask: Tensor, learnt: Tensor | None) -> Tensor:
    """The mask [R, T] of tokens, 0 throughout the rows that are not learnt from, bool [R]; as it is where all are."""
    return mask if learnt is None else mask * learnt[:, None].to(mask.dtype)


def pad_rows(
    rows: Sequence[Sequence[int] | NDArray[np.integer]],
    pad: int,
    device: torch.device | str = "cpu",
    multiple: int = 1,
) -> tuple[Tensor, Tensor]:
    """Right-pad ragged id lists or arrays to int64 ids [R, T] and mask [R, T] (1 = real).

    T is at least 1 and a multiple of `multiple`.
    """
    import numpy as np
    import torch

    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    width = max(1, int(lengths.max(initial=0)))
    ids = np.full((len(rows), width + -width % multiple), pad, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    return on_device(torch.from_numpy(ids), device), on_device(torch.from_numpy(mask.astype(np.int64)), device)


def on_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of any shape on a device. From the CPU to a GPU nobody waits for the GPU to take it."""
    import torch

    if tensor.device.type != "cpu" or torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
