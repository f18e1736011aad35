"""The fast rollout engine: static caches, prompts shared by their samples, sampling on the device.

Knows the loop, the sampling and the bookkeeping of rows; the architecture is a `Stepper`'s. On CUDA a step, which only
reads and writes tensors that keep their place, is recorded once as a CUDA graph and replayed: one launch instead of
hundreds. Elsewhere finished rows are dropped, and attention grows with the step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.core.records import Decoding, Greedy
from finegrained_rlhf.models.distribution import draw
from finegrained_rlhf.models.logprobs import drawn_logprobs
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rollout.assembly import row_order
from finegrained_rlhf.rollout.engine import PolicyEngine
from finegrained_rlhf.rollout.lookup import PromptLookup
from finegrained_rlhf.rollout.noise import row_noise
from finegrained_rlhf.rollout.steppers.base import Block, BlockStepper, OpenStepper, ReloadableStepper, Stepper

_WARM_UPS = 3


class GraphPool:
    """Memory for what steps compute with between their first and last operation, shared by all recordings.

    They may share it because they run one after the other, and none reads what another left there.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def handle(self) -> Any:
        """What `torch.cuda.graph` takes as `pool`."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle


class GraphedStep:
    """Records a step the first time it is asked for with a window, and replays it from then on.

    Args:
        step: does one step for a window; never waits for the device, and leaves nothing but in tensors that were there
            before.
        volatile: the tensors that must not have changed after recording, because a later step starts from them.
        pool: where the step's other tensors lie.
    """

    def __init__(self, step: Callable[[int], None], volatile: Sequence[Tensor], pool: GraphPool) -> None:
        self._step, self._volatile, self._pool = step, volatile, pool
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, window: int) -> None:
        """Do one step."""
        if window not in self._graphs:
            self._graphs[window] = self._record(window)
        self._graphs[window].replay()

    def _record(self, window: int) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, put the state back, and record (which runs nothing)."""
        saved = [tensor.clone() for tensor in self._volatile]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._step(window)
                for tensor, before in zip(self._volatile, saved, strict=True):
                    tensor.copy_(before)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool.handle):
            self._step(window)
        return graph


# Compaction copies the caches; it pays when a quarter of the rows is gone.
_WORTH_COMPACTING = 0.75
# On CUDA, asking whether all rows have ended makes the host wait for the device.
_STEPS_BETWEEN_CHECKS = 16
PROMPT_BUCKET = 128
"""Prompt lengths are rounded up to a multiple of so many tokens where steps are recorded: batches of other prompts then
use the same graph."""
MOST_RECORDED = 16
KEPT_BYTES = 1 << 31
"""The shapes used last stay recorded: two of them, and up to `MOST_RECORDED` while the caches of all take at most so
many bytes. With few prompts a process, the shape changes nearly every step."""


@dataclass
class _State:
    """Everything that changes from step to step, in tensors that keep their place.

    Attributes:
        position: int64 [1], the step.
        tokens: int64 [r], fed next.
        finished: bool [r].
        rows: int64 [r], which of the R rows each present row is.
        noise: fp64 [R, T].
        ids: int64 [R, T], drawn so far.
        logprobs: fp32 [R, T].
        support: int [R, T, K], as `drawn_logprobs` gives it; made by the first step that has one.
    """

    position: Tensor
    tokens: Tensor
    finished: Tensor
    rows: Tensor
    noise: Tensor
    ids: Tensor
    logprobs: Tensor
    support: Tensor | None = None


class FastEngine(PolicyEngine):
    """Draws responses step by step; see `RolloutEngine` for the contract.

    Args:
        policy: whose weights the stepper reads at every `decode`.
        open_stepper: makes the stepper of its architecture; with a draft a `BlockStepper`.
        draft: tokens looked ahead at most (`RolloutConfig.draft`); steps are not recorded then.
    """

    def __init__(self, policy: Policy, open_stepper: OpenStepper, draft: int = 0) -> None:
        super().__init__(policy)
        self._open, self._draft = open_stepper, draft
        self._recorded: OrderedDict[tuple[object, ...], _Loop] = OrderedDict()
        self._pool = GraphPool()

    def _draw(
        self, memory: PromptMemory, decodings: Sequence[Decoding], limit: int, seed: int, step: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        noise = torch.from_numpy(row_noise(memory.prompts, decodings, limit, seed, step))
        return self._loop(memory, tuple(decodings), limit).run(noise.to(self.policy.device))

    def _records(self) -> bool:
        """Whether steps are recorded, where the policy is now: it may have moved since this engine was made."""
        return self.policy.device.type == "cuda" and not self._draft

    def _loop(self, memory: PromptMemory, decodings: tuple[Decoding, ...], limit: int) -> _Loop:
        """A loop at position 0. Where steps are recorded, the loops of the last shapes are kept with their graphs."""
        if not self._records():
            return self._new(memory, decodings, limit)
        memory = _bucketed(memory)
        key = (tuple(memory.prompt_ids.shape), decodings, limit, torch.is_autocast_enabled(self.policy.device.type))
        if key in self._recorded:
            self._recorded.move_to_end(key)
            self._recorded[key].reload(memory)
            return self._recorded[key]
        self._forget(1)
        loop = self._new(memory, decodings, limit)
        if loop.record(self._pool):
            self._recorded[key] = loop
            self._forget(0)
        return loop

    def _forget(self, coming: int) -> None:
        """Drop the recordings that were used longest ago, until they and some that come are few and small enough."""
        while (count := len(self._recorded) + coming) > 2:
            if count <= MOST_RECORDED and sum(loop.kept_bytes for loop in self._recorded.values()) <= KEPT_BYTES:
                return
            self._recorded.popitem(last=False)[1].forget()

    def _new(self, memory: PromptMemory, decodings: tuple[Decoding, ...], limit: int) -> _Loop:
        stepper = self._open(self.policy, memory, sum(decoding.samples for decoding in decodings), limit)
        arguments = self.policy, stepper, len(memory.prompts), decodings, limit
        if not self._draft:
            return _Loop(*arguments)
        return _DraftedLoop(*arguments, [PromptLookup(prompt.input_ids) for prompt in memory.prompts], self._draft)


class _Loop:
    """The rows of one `decode`."""

    def __init__(
        self, policy: Policy, stepper: Stepper, prompts: int, decodings: Sequence[Decoding], limit: int
    ) -> None:
        self.policy, self.stepper, self.decodings, self.limit = policy, stepper, decodings, limit
        device = policy.device
        self.eos = torch.tensor(policy.eos_ids, device=device)
        _, _, self.which = row_order(prompts, decodings, device)
        rows = self.which.shape[0]
        self.prompts, self.samples = prompts, rows // max(prompts, 1)
        self.state = _State(
            position=torch.zeros(1, dtype=torch.long, device=device),
            tokens=stepper.first_tokens.clone(),
            finished=torch.zeros(rows, dtype=torch.bool, device=device),
            rows=torch.arange(rows, device=device),
            noise=torch.zeros(rows, limit, dtype=torch.float64, device=device),
            ids=torch.zeros(rows, limit, dtype=torch.long, device=device),
            logprobs=torch.zeros(rows, limit, device=device),
        )
        self._group(self.state.rows)
        self._graph: GraphedStep | None = None
        self._between_checks = _STEPS_BETWEEN_CHECKS if device.type == "cuda" else 1

    def record(self, pool: GraphPool) -> bool:
        """Record the step as a CUDA graph from now on; False where the stepper cannot be filled anew."""
        if isinstance(self.stepper, ReloadableStepper):
            state = self.state
            self._graph = GraphedStep(self._advance, [state.position, state.tokens, state.finished], pool)
            self._between_checks = _STEPS_BETWEEN_CHECKS
        return self._graph is not None

    def forget(self) -> None:
        """Let go of the recording, which holds this loop and its caches."""
        self._graph = None

    @property
    def kept_bytes(self) -> int:
        """Of the caches that a recording keeps."""
        assert isinstance(self.stepper, ReloadableStepper)
        return self.stepper.kept_bytes

    def reload(self, memory: PromptMemory) -> None:
        """Read weights and prompts again."""
        assert isinstance(self.stepper, ReloadableStepper)
        self.stepper.reload(memory)

    def run(self, noise: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw until every row has ended.

        Args:
            noise: fp64 [R, T], uniform in (0, 1).

        Returns:
            int64 ids and fp32 log-probabilities [R, T], and the support [R, T, K] of a truncated distribution; what
            follows the end of sequence means nothing.
        """
        state = self.state
        state.noise.copy_(noise)
        state.position.zero_()
        state.finished.zero_()
        state.tokens.copy_(self.stepper.first_tokens)
        state.ids.fill_(self.policy.eos_ids[0])
        for position in range(self.limit):
            if self._graph is None:
                self._advance(position + 1)
            else:
                self._graph(self.limit)
            if (position + 1) % self._between_checks == 0 and position + 1 < self.limit and self._done():
                break
        return state.ids, state.logprobs, state.support

    def _done(self) -> bool:
        return self._drop_finished() if self._graph is None else bool(self.state.finished.all())

    def _advance(self, window: int) -> None:
        """One step of all present rows; nothing here waits for the device."""
        state = self.state
        logits = self.stepper.logits(state.tokens, state.position, window)
        noise = state.noise.index_select(1, state.position).squeeze(1)[state.rows]
        tokens = self._choose(logits, noise)
        logprobs, support = drawn_logprobs(logits, tokens, self.policy.scored)
        state.logprobs.index_put_((state.rows, state.position), logprobs)
        if support is not None:
            if state.support is None:  # in a warm-up, where the step is recorded
                state.support = support.new_zeros(*state.ids.shape, support.shape[-1])
            state.support.index_put_((state.rows, state.position), support)
        # A finished row goes on with padding, which nobody reads; its row of ids is already right.
        tokens = torch.where(state.finished, self.eos[0], tokens)
        state.ids.index_put_((state.rows, state.position), tokens)
        state.finished.logical_or_((tokens[:, None] == self.eos).any(dim=1))
        state.tokens.copy_(tokens)
        state.position.add_(1)

    def _group(self, rows: Tensor) -> None:
        """Where the rows of each decoding are among `rows`, int64 [r] of the R; None where all rows share one."""
        present = self.which[rows]
        groups = [torch.nonzero(present == number).squeeze(1) for number in range(len(self.decodings))]
        self._rows_of: list[Tensor | None] = [None] if len(self.decodings) == 1 else list(groups)

    def _choose(self, logits: Tensor, noise: Tensor) -> Tensor:
        if self._rows_of[0] is None:
            return _choose(logits, self.decodings[0], noise)
        tokens = torch.empty(logits.shape[0], dtype=torch.long, device=logits.device)
        for decoding, rows in zip(self.decodings, self._rows_of, strict=True):
            assert rows is not None
            if rows.numel():
                tokens.index_copy_(0, rows, _choose(logits[rows], decoding, noise[rows]))
        return tokens

    def _drop_finished(self) -> bool:
        """Compact the rows where it pays; True when none is left."""
        state, samples = self.state, self.samples
        alive = (~state.finished).view(self.prompts, samples)
        counts = alive.sum(dim=1)
        most = int(counts.max()) if counts.numel() else 0
        if most == 0:
            return True
        prompts = torch.nonzero(counts).squeeze(1)
        if prompts.numel() * most > _WORTH_COMPACTING * alive.numel():
            return False
        # Of each prompt that goes on, the rows that go on come first; ended ones fill up to equal numbers.
        order = torch.argsort(~alive, dim=1, stable=True)[prompts, :most].sort(dim=1).values
        rows = (prompts[:, None] * samples + order).flatten()
        self.stepper.keep(prompts, rows)
        state.tokens, state.finished, state.rows = state.tokens[rows], state.finished[rows], state.rows[rows]
        self.prompts, self.samples = prompts.numel(), most
        self._group(state.rows)
        return False


class _DraftedLoop(_Loop):
    """Rows that look ahead: each is fed its last token and a draft of what follows, and all are drawn from at once.

    A draft is no part of what is drawn: the token at each position follows from the logits and the noise there, as
    ever. It is kept while the token before it was the draft's, so that its logits were those of what has been drawn.

    Args:
        policy, stepper, prompts, decodings, limit: as of a `_Loop`; the stepper a `BlockStepper`.
        lookups: of the P prompts.
        draft: tokens looked ahead at most.
    """

    stepper: BlockStepper

    def __init__(
        self,
        policy: Policy,
        stepper: Stepper,
        prompts: int,
        decodings: Sequence[Decoding],
        limit: int,
        lookups: Sequence[PromptLookup],
        draft: int,
    ) -> None:
        super().__init__(policy, stepper, prompts, decodings, limit)
        self._lookups = [lookup for lookup in lookups for _ in range(self.samples)]
        self._drawn: list[list[int]] = [[] for _ in self._lookups]
        self._draft = draft

    def _advance(self, window: int) -> None:
        """One step of all rows that have not ended, each from its own position."""
        state, device = self.state, self.policy.device
        rows, ended, first = state.rows.tolist(), state.finished.tolist(), self.stepper.first_tokens.tolist()
        fed: list[list[int]] = []
        for number, row in enumerate(rows):
            drawn = self._drawn[row]
            last = drawn[-1] if drawn else first[number]
            ahead = self._lookups[row].draft(drawn, min(self._draft, self.limit - len(drawn) - 1))
            fed.append([] if ended[number] else [last, *ahead])
        block = self._block(fed)
        tokens = torch.tensor([token for ids in fed for token in ids], device=device)
        logits = self.stepper.block(tokens, block)
        whose = state.rows[block.rows]
        self._group(whose)
        chosen = self._choose(logits, state.noise[whose, block.places])
        kept = torch.tensor(self._keep(fed, rows, ended, chosen.tolist()), device=device)
        chosen, whose, places = chosen[kept], whose[kept], block.places[kept]
        state.ids[whose, places] = chosen
        state.logprobs[whose, places], support = drawn_logprobs(logits[kept], chosen, self.policy.scored)
        if support is not None:
            if state.support is None:
                state.support = support.new_zeros(*state.ids.shape, support.shape[-1])
            state.support[whose, places] = support
        state.finished.copy_(torch.tensor(ended))

    def _block(self, fed: Sequence[Sequence[int]]) -> Block:
        """Where the tokens go that are fed to each present row."""
        begins = [len(self._drawn[row]) for row in self.state.rows.tolist()]
        width = max(map(len, fed))
        where = [
            (number, begin + ahead, number * width + ahead)
            for number, (ids, begin) in enumerate(zip(fed, begins, strict=True))
            for ahead in range(len(ids))
        ]
        rows, places, slots = torch.tensor(where, device=self.policy.device).unbind(dim=1)
        return Block(rows, places, slots, width, 1 + max(place for _, place, _ in where))

    def _keep(
        self, fed: Sequence[Sequence[int]], rows: Sequence[int], ended: list[bool], chosen: Sequence[int]
    ) -> list[int]:
        """Which of the M drawn tokens are the responses'; they are added to them, and `ended` rows are marked."""
        kept, start = [], 0
        for number, ids in enumerate(fed):
            drawn = self._drawn[rows[number]]
            for ahead in range(len(ids)):
                token = chosen[start + ahead]
                kept.append(start + ahead)
                drawn.append(token)
                ended[number] = token in self.policy.eos_ids or len(drawn) == self.limit
                if ended[number] or ids[ahead + 1 : ahead + 2] != [token]:
                    break
            start += len(ids)
        return kept


def _choose(logits: Tensor, decoding: Decoding, noise: Tensor) -> Tensor:
    """int64 [r], the next token of each row."""
    return logits.float().argmax(dim=-1) if isinstance(decoding, Greedy) else draw(logits, decoding, noise)


def _bucketed(memory: PromptMemory) -> PromptMemory:
    """The same prompts, padded to a multiple of `PROMPT_BUCKET` tokens."""
    more = -memory.prompt_ids.shape[1] % PROMPT_BUCKET
    return replace(
        memory,
        prompt_ids=F.pad(memory.prompt_ids, (0, more)),
        prompt_mask=F.pad(memory.prompt_mask, (0, more)),
        states=None if memory.states is None else F.pad(memory.states, (0, 0, 0, more)),
    )
