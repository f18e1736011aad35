"""Responses in several turns: the policy answers, an environment replies, the policy goes on, by any rollout engine.

One response holds all turns: the tokens that the policy wrote, and between them the environment's as the chat template
writes them. `Rollout.turns` says which are whose. Knows no reward.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.generation.outcomes import Outcome, OutcomeCounts
from finegrained_rlhf.core.records import Decoding, Prompt, Rollout, Sample, Turns, pad_rows
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.rollout.assembly import assemble
from finegrained_rlhf.rollout.engine import RolloutEngine
from finegrained_rlhf.rollout.environment import Environment
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import decode_text
from finegrained_rlhf.text.chat import ChatFormat

logger = logging.getLogger(__name__)
_FAILURES = 0.1
"""The share of conversations in which an environment may break before the run ends."""


@dataclass
class _Talk:
    """A response as it grows."""

    prompt: Prompt
    decoding: int
    name: str
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    supports: list[Tensor] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    failed: bool = False

    def add(self, drawn: Rollout, row: int, room: int) -> None:
        length, begin = min(int(drawn.lengths()[row]), room), len(self.ids)
        self.ids += drawn.response_ids[row, :length].tolist()
        self.logprobs += drawn.logprobs[row, :length].tolist()
        self.turns.append((begin, len(self.ids)))
        if drawn.support is not None:
            self.supports.append(drawn.support[row, :length])

    def next_prompt(self) -> Prompt:
        return Prompt(f"{self.name}\0{len(self.turns)}", "", (*self.prompt.input_ids, *self.ids))


class TurnsEngine:
    """Draws responses in turns; see `RolloutEngine` for the contract. `max_new_tokens` counts all turns and replies.

    A conversation ends where the environment has no reply, where a turn has no end of sequence, or where the reply and
    a token behind it would be too long. The noise of a further turn is a function of (seed, step, draw, sample, turn).

    Args:
        engine: draws each turn.
        policy: a chat model, with the template that its prompts were put by.
        environment: replies.

    Raises:
        ConfigError: the policy holds no conversations.
    """

    def __init__(self, engine: RolloutEngine, policy: Policy, environment: Environment) -> None:
        if not isinstance(policy, CausalPolicy):
            raise ConfigError("environment: only decoder-only chat models answer in turns, this is an encoder-decoder")
        self._engine, self._policy, self._environment = engine, policy, environment
        # Engines count them whether or not they are rows of a table.
        self._positions: int | None = getattr(policy.model.config, "max_position_embeddings", None)
        self._chat = ChatFormat(policy.tokenizer, policy.prompt)
        try:
            if not self._chat:
                raise ConfigError("the policy's tokenizer has no chat template: prompt.chat_template=FILE")
            self._chat.reply_ids(environment.role, "reply")
        except FineGrainedError as error:
            raise ConfigError(f"environment: {error}") from None
        self._outcomes = OutcomeCounts(_FAILURES, name="environment")

    def refresh(self, processes: Processes) -> None:
        """Give an engine that draws elsewhere the weights (`VLLMEngine.refresh`)."""
        if (elsewhere := getattr(self._engine, "refresh", None)) is not None:
            elsewhere(processes)

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """See `RolloutEngine.encode`."""
        return self._engine.encode(prompts)

    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """See `RolloutEngine.decode`."""
        first = self._engine.decode(memory, decodings, max_new_tokens=max_new_tokens, seed=seed, step=step)
        talks = []
        places = zip(first.row_prompts(), first.decoding_index.tolist(), first.sample_index.tolist(), strict=True)
        for row, (prompt, decoding, sample) in enumerate(places):
            talks.append(_Talk(prompt, decoding, f"{prompt.draw}\0{decoding}\0{sample}"))
            talks[-1].add(first, row, max_new_tokens)
        going = talks
        while going := [talk for talk in going if self._goes_on(talk, max_new_tokens, seed, step)]:
            for number, decoding in enumerate(decodings):
                alone = replace(decoding, n=1) if isinstance(decoding, Sample) else decoding
                chosen = [talk for talk in going if talk.decoding == number]
                self._next_turns(chosen, alone, max_new_tokens, seed, step)
        return self._rollout(memory, decodings, talks)

    def _goes_on(self, talk: _Talk, limit: int, seed: int, step: int) -> bool:
        """Whether the environment replied and there is room; its tokens are added then."""
        if not talk.ids or talk.ids[-1] not in self._policy.eos_ids:
            return False
        texts = [decode_text(self._policy.tokenizer, talk.ids[begin:end]) for begin, end in talk.turns]
        outcome, problem, reply = Outcome.READ, "", None
        try:
            reply = self._environment.reply(talk.prompt, texts, stable_hash(seed, step, talk.name, len(texts)))
            if not isinstance(reply, str | None):
                raise TypeError(f"reply gave {type(reply).__name__}, expected a text or None")
            ids = [] if reply is None else self._chat.reply_ids(self._environment.role, reply)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            talk.failed, outcome, reply = True, Outcome.FAILED, None
            problem = f"{type(error).__name__}: {error}"
            logger.warning("the environment broke at prompt %r, turn %d: %s", talk.prompt.id, len(texts), problem)
        self._outcomes.add([outcome])
        self._outcomes.check(type(self._environment).__name__, problem)
        if reply is None or len(talk.ids) + len(ids) >= limit:
            return False
        talk.ids += ids
        talk.logprobs += [0.0] * len(ids)
        talk.supports += [support.new_zeros(len(ids), support.shape[1]) for support in talk.supports[:1]]
        talk.messages.append({"role": self._environment.role, "content": reply})
        return True

    def _next_turns(self, talks: Sequence[_Talk], decoding: Decoding, limit: int, seed: int, step: int) -> None:
        if not talks:
            return
        room = max(limit - len(talk.ids) for talk in talks)
        longest = max(len(talk.prompt.input_ids) + len(talk.ids) for talk in talks)
        if self._positions is not None and longest + room > self._positions and len(talks) > 1:
            order = sorted(talks, key=lambda talk: len(talk.ids))  # short ones have more room, long ones less
            for half in (order[: len(order) // 2], order[len(order) // 2 :]):
                self._next_turns(half, decoding, limit, seed, step)
            return
        memory = self._engine.encode([talk.next_prompt() for talk in talks])
        drawn = self._engine.decode(memory, [decoding], max_new_tokens=room, seed=seed, step=step)
        for row, talk in enumerate(talks):
            talk.add(drawn, row, limit - len(talk.ids))

    def _rollout(self, memory: PromptMemory, decodings: Sequence[Decoding], talks: Sequence[_Talk]) -> Rollout:
        device = memory.prompt_ids.device
        ids, mask = pad_rows([talk.ids for talk in talks], self._policy.pad_id, device)
        logprobs = torch.zeros(ids.shape)
        for row, talk in enumerate(talks):
            logprobs[row, : len(talk.logprobs)] = torch.tensor(talk.logprobs)
        supports = [torch.cat(talk.supports) for talk in talks if talk.supports]
        support = pad_sequence(supports, batch_first=True) if supports else None
        rollout = assemble(memory, decodings, ids, mask, logprobs.to(device), self._policy.tokenizer)
        turns = []
        for talk, ends in zip(talks, rollout.token_ends, strict=True):
            spans = tuple((ends[begin - 1] if begin else 0, ends[end - 1]) for begin, end in talk.turns)
            turns.append(Turns(tuple(talk.turns), spans, tuple(talk.messages), talk.failed))
        return replace(rollout, turns=turns, support=support)


def in_turns(engine: RolloutEngine, policy: Policy, environment: Environment, prompts: Sequence[Prompt]) -> TurnsEngine:
    """The engine that answers these prompts in turns.

    Raises:
        ConfigError: the policy holds no conversations.
        DataError: a prompt is a text.
    """
    turns = TurnsEngine(engine, policy, environment)
    for prompt in prompts:
        if "messages" not in prompt.metadata:
            raise DataError(
                "is a text, and an environment replies to messages; prompt.chat_template=on puts texts as such",
                record=prompt.id,
            )
    return turns
