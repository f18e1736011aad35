"""DIALKI as a plain loop: every passage tokenised anew with its dialogue, one forward pass each, spans in Python loops.

Knows a model's weights, and transformers. It shares with the project those weights, the hash that draws the noise, and
nothing else: layout, heads, losses and search are written out here, one passage at a time, without any padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.dialki_workload import LOSSES
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.inputs.batches import Chosen
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.model.objective import RandomState, hashed_noise
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.dialogue.tokens import ROLE_TOKENS
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes


@dataclass(frozen=True)
class PlainInput:
    """One passage with its dialogue.

    Attributes:
        ids: int64 [1, L].
        turns: where each turn begins, newest first.
        users: the places in `turns` of user turns.
        agents: those of agent turns.
        spans: where each span begins that fits whole.
    """

    ids: Tensor
    turns: list[int]
    users: list[int]
    agents: list[int]
    spans: list[int]


@dataclass(frozen=True)
class PlainScores:
    """Logits of one passage.

    Attributes:
        passage: fp32 [1].
        begin: fp32 [S].
        end: fp32 [S].
        turns: [T, D], hidden states of the turns.
        states: [S, D], hidden states of the spans.
    """

    passage: Tensor
    begin: Tensor
    end: Tensor
    turns: Tensor
    states: Tensor


@dataclass(frozen=True)
class PlainAnswer:
    """The answer to one dialogue.

    Attributes:
        knowledge: passage and spans.
        probability: of the passage.
        score: of the run of spans.
    """

    knowledge: Knowledge
    probability: float
    score: float


class PlainDialki:
    """The plain side.

    Args:
        model: whose weights it uses and trains.
        processes: device and precision.
        optimizer: rates; the schedule is constant.
        seed: of the run.
    """

    def __init__(self, model: DialkiModel, processes: Processes, optimizer: OptimizerConfig, seed: int) -> None:
        self.model, self.processes, self.seed = model.to(processes.device), processes, seed
        self.clip = optimizer.max_grad_norm
        self.adam = torch.optim.AdamW(
            model.parameters(), lr=optimizer.lr, betas=optimizer.betas, eps=optimizer.eps, weight_decay=0.0
        )

    # Inputs and scores of one passage ---------------------------------------------------------------------------

    def read(self, example: DialogueExample, place: int) -> PlainInput:
        """Tokenise a passage and its dialogue."""
        tokenizer, config = self.model.tokenizer, self.model.config.inputs
        passage, turns = example.passages[place], example.turns[::-1]
        pieces = [f"{config.role_suffix} {turn.text}" for turn in turns]
        pieces += [f" {text}" for text in (passage.title, *passage.spans)]
        rows = tokenizer(pieces, add_special_tokens=False).input_ids
        history: list[int] = []
        starts: list[int] = []
        for turn, row in zip(turns, rows[: len(turns)], strict=True):
            if len(history) < config.max_context:
                starts.append(1 + len(history))
            history += [tokenizer.convert_tokens_to_ids(ROLE_TOKENS[turn.role]), *row]
        ids = [tokenizer.cls_token_id, *history[: config.max_context], tokenizer.sep_token_id]
        ids += [*rows[len(turns)], tokenizer.sep_token_id]
        spans = []
        for row in rows[len(turns) + 1 :]:
            if len(ids) + len(row) + 1 < config.max_length:
                spans.append(len(ids))
            ids += [tokenizer.cls_token_id, *row]
        ids = [*ids[: config.max_length - 1], tokenizer.sep_token_id]
        roles = [turn.role for turn in turns[: len(starts)]]
        users = [i for i, role in enumerate(roles) if role == "user"]
        agents = [i for i, role in enumerate(roles) if role == "agent"]
        return PlainInput(torch.tensor([ids], device=self.processes.device), starts, users, agents, spans)

    def scores(self, given: PlainInput, noise: Tensor | None = None) -> PlainScores:
        """One forward pass."""
        heads = self.model.heads
        embeddings = self.model.encoder.get_input_embeddings()(given.ids)
        if noise is not None:
            embeddings = embeddings + noise
        hidden = self.model.encoder(inputs_embeds=embeddings).last_hidden_state[0]
        whole, turns, spans = hidden[0], hidden[given.turns], hidden[given.spans]
        assert heads.contextualize is not None and heads.span_head is not None
        seen = [
            self._contextual(heads.contextualize["user"], spans, whole, turns, given.users[:2]),
            self._contextual(heads.contextualize["agent"], spans, whole, turns, given.agents),
        ]
        begin, end = heads.span_head(torch.cat([spans, *seen], dim=-1)).float().unbind(-1)
        return PlainScores(heads.passage_head(whole).float(), begin, end, turns, spans)

    def _contextual(self, module: Any, spans: Tensor, whole: Tensor, turns: Tensor, which: list[int]) -> Tensor:
        """Spans that have seen some turns, turn by turn."""
        drop = self.model.heads.dropout
        update = torch.zeros_like(spans)
        if which:
            of_span, of_whole = module.span(drop(spans)), module.whole(drop(whole))
        for i in which:
            gate = torch.sigmoid(turns[i] @ whole + spans @ turns[i])
            update = update + torch.relu(of_span + of_whole + module.turn(drop(turns[i]))) * gate[:, None]
        return F.normalize(update.float() + spans.float(), dim=-1)

    # Inference --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def identify(self, examples: Sequence[DialogueExample]) -> list[PlainAnswer]:
        """The answers to dialogues, one after the other."""
        self.model.eval()
        return [self._answer(example) for example in examples]

    def _answer(self, example: DialogueExample) -> PlainAnswer:
        config = self.model.config.search
        places: list[int] = []
        found: list[PlainScores] = []
        for place in range(len(example.passages)):
            given = self.read(example, place)
            if given.spans and len(places) < config.max_passages:
                places.append(place)
                with self.processes.autocast():
                    found.append(self.scores(given))
        passages = torch.cat([scores.passage for scores in found]).softmax(0).tolist()
        best = max(range(len(places)), key=lambda i: passages[i])
        begin, end = found[best].begin.softmax(0).tolist(), found[best].end.softmax(0).tolist()
        score, first, last = max(
            ((begin[i] + end[j], i, j) for i, j in _runs(len(begin), config.max_spans)), key=lambda run: run[0]
        )
        return PlainAnswer(Knowledge(places[best], first, last), passages[best], score)

    # Training ---------------------------------------------------------------------------------------------------

    def train_step(self, step: int, chosen: Sequence[Chosen]) -> float:
        """One optimizer step on some dialogues, one backward pass a dialogue. Returns their mean loss."""
        self.model.train()
        self.adam.zero_grad()
        total = 0.0
        for item in chosen:
            with self.processes.autocast():
                loss = self._loss(item, stable_hash(self.seed, "noise", step))
            (loss / len(chosen)).backward()  # type: ignore[no-untyped-call]
            total += loss.item() / len(chosen)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.adam.step()
        self.model.eval()
        return total

    def _loss(self, item: Chosen, seed: int) -> Tensor:
        """L of one dialogue."""
        example = item.example.example
        before = RandomState.of(self.processes.device)
        inputs = [self.read(example, place) for place in item.passages]
        clean = [self.scores(given) for given in inputs]
        assert item.gold is not None
        loss = _picked(clean, item.passages.index(item.gold.passage), item.gold)
        history = self._history(item, clean)
        keys = [stable_hash(example.id, place) ^ seed for place in item.passages]
        config = LOSSES.noise
        width = self.model.encoder.get_input_embeddings().weight.shape[1]
        noises = []
        for key, given in zip(keys, inputs, strict=True):
            drawn = hashed_noise(torch.tensor([key], device=self.processes.device), given.ids.shape[1], width)
            noises.append((drawn * (config.start * config.radius / drawn.norm())).requires_grad_())
        with before.again(self.processes.device):
            moved = [self.scores(given, noise) for given, noise in zip(inputs, noises, strict=True)]
            gradients = torch.autograd.grad(_divergence(_detached(clean), moved), noises)
        worst = []
        for noise, gradient in zip(noises, gradients, strict=True):
            further = noise.detach() + gradient.float() * (config.step * config.radius / gradient.float().norm())
            worst.append(further * (config.radius / further.norm()).clamp(max=1.0))
        with before.again(self.processes.device):
            noisy = [self.scores(given, noise) for given, noise in zip(inputs, worst, strict=True)]
        return loss + LOSSES.history * history + LOSSES.adversarial * _divergence(clean, noisy)

    def _history(self, item: Chosen, clean: Sequence[PlainScores]) -> Tensor:
        """Mean loss of the turns whose knowledge is among the passages, turn by turn."""
        history = self.model.heads.history
        losses = []
        for t, known in enumerate(item.example.history):
            if known is None or known.passage not in item.passages:
                continue
            place = item.passages.index(known.passage)
            passages = [
                history["passage_head"](torch.relu(history["passage_hidden"](scores.turns[t]))).float()
                for scores in clean
            ]
            here = clean[place]
            begin, end = ((here.states @ history[name](here.turns[t])).float() for name in ("start", "end"))
            losses.append(
                _cross_entropy(torch.cat(passages), place)
                + _cross_entropy(begin, known.begin)
                + _cross_entropy(end, known.end)
            )
        return torch.stack(losses).mean() if losses else clean[0].passage.new_zeros(())


def _runs(spans: int, longest: int) -> Iterator[tuple[int, int]]:
    for i in range(spans):
        for j in range(i, min(i + longest, spans)):
            yield i, j


def _cross_entropy(logits: Tensor, right: int) -> Tensor:
    return -logits.log_softmax(0)[right]


def _picked(scores: Sequence[PlainScores], place: int, gold: Knowledge) -> Tensor:
    """Loss of the next turn's passage, first and last span."""
    passages = _cross_entropy(torch.cat([passage.passage for passage in scores]), place)
    return passages + _cross_entropy(scores[place].begin, gold.begin) + _cross_entropy(scores[place].end, gold.end)


def _detached(scores: Sequence[PlainScores]) -> list[PlainScores]:
    return [PlainScores(s.passage.detach(), s.begin.detach(), s.end.detach(), s.turns, s.states) for s in scores]


def _divergence(first: Sequence[PlainScores], second: Sequence[PlainScores]) -> Tensor:
    """Jensen–Shannon divergence of the passages, and of begin and end in each of them."""
    total = _jensen_shannon(torch.cat([a.passage for a in first]), torch.cat([b.passage for b in second]))
    for a, b in zip(first, second, strict=True):
        total = total + _jensen_shannon(a.begin, b.begin) + _jensen_shannon(a.end, b.end)
    return total


def _jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    log_p, log_q = first.log_softmax(0), second.log_softmax(0)
    log_m = ((log_p.exp() + log_q.exp()) / 2).log()
    return 0.5 * ((log_p.exp() * (log_p - log_m)).sum() + (log_q.exp() * (log_q - log_m)).sum())
