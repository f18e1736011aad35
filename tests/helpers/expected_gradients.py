"""The gradient that an algorithm has on average, by enumeration of all groups of responses that can be drawn.

What is enumerated goes through the trainer's own `make_experience` and `PPOUpdate`; only the network is a table of
logits, in fp64. A policy draws from {0, 1, end} with probabilities in fifths, so that one group of 5^length responses
can hold each as often as it is likely: the limit of many samples.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import torch
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rl.importance import ImportanceMode, importance_weights
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch
from finegrained_rlhf.training.ppo import update
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience

Response = tuple[int, ...]
Segments = Callable[[Response], list[tuple[int, float]]]
"""Of a response: the token that ends each segment, and its value."""
END, START = 2, 3
PROMPT = prompts(count=1)
FIFTHS = list(dict.fromkeys([*itertools.permutations((3, 1, 1)), *itertools.permutations((2, 2, 1))]))


class Table:
    """A policy by place and by the token before.

    Args:
        longest: tokens of the longest response.
        seed: of its probabilities.
        fifths: all of them are multiples of 1/5; else anything.

    Attributes:
        logits: fp64 [longest, 3, 4]; the last column is of the first place.
        responses: all that can be drawn: up to the end of sequence, or `longest` tokens.
        mask: int [n, longest], of the responses.
    """

    def __init__(self, longest: int, seed: int = 0, fifths: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        if fifths:
            chosen = torch.randint(len(FIFTHS), (longest, 4), generator=generator)
            self.logits = (torch.tensor(FIFTHS).double()[chosen] / 5).log().transpose(1, 2).contiguous()
        else:
            self.logits = torch.randn(longest, 3, 4, generator=generator, dtype=torch.float64)
        self.longest, self.responses = longest, self._all(longest)
        self.lengths = torch.tensor([len(row) for row in self.responses])
        self.mask = (torch.arange(longest) < self.lengths[:, None]).long()
        self.ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in self.responses])
        self.before = torch.cat([torch.full_like(self.ids[:, :1], START), self.ids[:, :-1]], dim=1)

    def _all(self, longest: int, begun: Response = ()) -> list[Response]:
        if begun and (begun[-1] == END or len(begun) == longest):
            return [begun]
        return [whole for token in range(3) for whole in self._all(longest, (*begun, token))]

    def distributions(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """fp64 [n, T, 3], log-probabilities at each state."""
        places = torch.arange(self.longest).expand_as(self.ids)
        return (logits[places, :, self.before] / temperature).log_softmax(dim=2)

    def logprobs(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """fp64 [n, T], of the responses' tokens; 0 at padding."""
        return self.distributions(logits, temperature).gather(2, self.ids[:, :, None])[:, :, 0] * self.mask


@dataclass(frozen=True)
class Setting:
    """What is drawn, what is paid, what is learnt from it.

    Attributes:
        table: the policy that is trained.
        rewards: weight and payments of each component; see `paid`.
        algorithm: makes advantages.
        config: of the update; the first optimizer step alone is looked at.
        samples: responses a group.
        many: statistics of a step are those of infinitely many groups; else of one.
        drawn: temperature at which responses are drawn, and their reward is expected.
        scored: temperature of the distribution that is differentiated.
        behaviour: logits of the policy that draws, where that is another one.
        importance: how the loss is weighed for that (`rl.importance`); None: not.
        per_decision: every reward is multiplied by the ratio of the tokens up to it.
        beta: β of the KL from `reference`.
        reference: logits.
        values: [n, T] of a value model.
        masked: bool [n], responses that are not learnt from though they are in all statistics.
        target: [n], numbers whose mean's gradient is the true one; None: rewards, less β times the log ratio.
    """

    table: Table
    rewards: Mapping[str, tuple[float, Sequence[Mapping[int, float]]]]
    algorithm: AdvantageEstimator
    config: PPOConfig
    samples: int = 2
    many: bool = False
    drawn: float = 1.0
    scored: float = 1.0
    behaviour: Tensor | None = None
    importance: ImportanceMode | None = None
    per_decision: bool = False
    beta: float = 0.0
    reference: Tensor | None = None
    values: Tensor | None = None
    masked: Tensor | None = None
    target: Tensor | None = None

    @cached_property
    def scores(self) -> tuple[Tensor, Tensor]:
        """fp64 [n, T, P] twice: gradients of log-probabilities, and of the KL over the vocabulary, by the logits."""
        table = self.table

        def of(logits: Tensor) -> Tensor:
            log_p = table.distributions(logits, self.scored)
            log_q = log_p.detach() if self.reference is None else table.distributions(self.reference, self.scored)
            return torch.stack(
                [table.logprobs(logits, self.scored), (log_p.exp() * (log_p - log_q)).sum(2) * table.mask]
            )

        self.__dict__["kl"] = of(table.logits)[1]
        whole = torch.autograd.functional.jacobian(of, table.logits, vectorize=True).flatten(3)
        return whole[0], whole[1]

    @cached_property
    def placed(self) -> dict[str, Tensor]:
        """fp64 [n, T] by component: the rewards at their tokens."""
        found = {}
        for name, (_, of_rows) in self.rewards.items():
            found[name] = torch.zeros(len(of_rows), self.table.longest, dtype=torch.float64)
            for row, of_row in enumerate(of_rows):
                for token, value in of_row.items():
                    found[name][row, token] = value
        return found

    def __hash__(self) -> int:
        return id(self)


def earned(setting: Setting) -> Tensor:
    """fp64 [n]: the weighted rewards of each response."""
    rows = range(len(setting.table.responses))
    parts = setting.rewards.values()
    return torch.tensor([sum(w * sum(paid[row].values()) for w, paid in parts) for row in rows], dtype=torch.float64)


def chances(table: Table, setting: Setting) -> Tensor:
    """fp64 [n]: how likely each response is drawn."""
    logits = table.logits if setting.behaviour is None else setting.behaviour
    return table.logprobs(logits, setting.drawn).sum(dim=1).exp()


def true_gradient(setting: Setting) -> Tensor:
    """fp64 [P], of the mean of the target under the trained policy, at the temperature that draws."""
    table, target = setting.table, setting.target
    if target is None:
        target = earned(setting)
        if setting.reference is not None:
            log_ratio = table.logprobs(table.logits, setting.drawn) - table.logprobs(setting.reference, setting.drawn)
            target = target - setting.beta * log_ratio.sum(dim=1)  # whose own gradient has mean 0
    logits = table.logits.clone().requires_grad_()
    worth = (table.logprobs(logits, setting.drawn).sum(dim=1).exp() * target).sum()
    return torch.autograd.grad(worth, logits)[0].flatten()


# One update ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Drawn:
    """In place of a policy: what the table says of the tokens. The update asks it for nothing else."""

    said: update.TokenStatistics

    def train(self, on: bool) -> None:
        """There is no dropout."""

    def modules(self) -> tuple[()]:
        """There are no networks."""
        return ()


_of_networks = update.token_statistics


def _token_statistics(policy: Any, *rest: Any, **options: Any) -> update.TokenStatistics:
    return policy.said if isinstance(policy, _Drawn) else _of_networks(policy, *rest, **options)


update.token_statistics = _token_statistics  # for good: groups run in threads


class _Sums(Processes):
    def __init__(self, reduce: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.sum_ = reduce  # type: ignore[method-assign, assignment]


def _trace(setting: Setting, rows: Tensor, factors: Tensor | None) -> RewardTrace:
    parts = {}
    for name, (weight, paid) in setting.rewards.items():
        raw = setting.placed[name]
        raw = raw[rows] if factors is None else raw[rows] * factors
        chosen = [paid[row] for row in rows.tolist()]
        values = [tuple(row.values()) for row in chosen]
        tokens = [tuple(row) for row in chosen]
        scores = SegmentScores([tuple((t, t + 1) for t in row) for row in tokens], values)
        parts[name] = ComponentTrace(scores, weight, raw, raw, weight * raw, values, tokens)
    return RewardTrace(parts, torch.stack([part.weighted for part in parts.values()]).sum(dim=0))


def coefficients(setting: Setting, rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """fp64 [R, T] twice: what one update multiplies the gradients of log-probabilities and of the KL by.

    Scaled so that the sum over a group's tokens is the policy gradient where `loss_average=constant`.
    """
    table, config, n = setting.table, setting.config, setting.samples
    groups = len(rows) // n
    now = table.logprobs(table.logits, setting.scored)[rows]
    sampler = now if setting.behaviour is None else table.logprobs(setting.behaviour, setting.drawn)[rows]
    ids, mask = table.ids[rows], table.mask[rows]
    weighs = setting.importance is not None
    found = importance_weights(now, sampler, mask, cap=1e9, mode=setting.importance) if setting.importance else None
    old = now if weighs else sampler
    index = torch.arange(groups).repeat_interleave(n)
    rollout = Rollout(
        PROMPT * groups, ids[:, :1], ids[:, :1], index, torch.zeros_like(index), torch.zeros_like(index),
        (Sample(n),), ids, mask, old, [""] * len(rows), [()] * len(rows), sampler if weighs else None,
    )  # fmt: skip
    reference = table.logprobs(table.logits if setting.reference is None else setting.reference, setting.scored)[rows]
    setting.scores  # noqa: B018  (makes the KL too)
    kl = setting.__dict__["kl"][rows]
    factors = found.ratios if found is not None and setting.per_decision else None
    experience = make_experience(
        rollout, _trace(setting, rows, factors), reference, None if setting.values is None else setting.values[rows],
        beta=setting.beta, config=config, reduce=reduce, algorithm=setting.algorithm,
        importance=None if setting.per_decision else found, kl=kl,
    )  # fmt: skip
    if setting.masked is not None:
        experience = replace(experience, learnt=~setting.masked[rows])
    leaves = now.clone().requires_grad_(), kl.clone().requires_grad_()
    said = update.TokenStatistics(leaves[0], torch.zeros_like(now), None, leaves[1])
    optimizer: Any = SimpleNamespace(sum_gradients=lambda: None, step=lambda step: 0.0)
    places = mask.flatten().nonzero().squeeze(1)
    batch = MicroBatch(rollout.prompts, torch.arange(len(rows)), index, ids, mask, places)
    one = update.PPOUpdate(
        cast(Any, _Drawn(said)),
        None,
        optimizer,
        _Sums(reduce),
        replace(config, epochs=1),
        table.longest,
    )
    one.run(1, experience, [batch], StepMetrics(), beta=setting.beta)
    of_kl = torch.zeros_like(now) if leaves[1].grad is None else leaves[1].grad
    assert leaves[0].grad is not None
    return -leaves[0].grad * table.longest, -of_kl * table.longest


# All groups ------------------------------------------------------------------------------------------------------


def in_lockstep(weights: Tensor, work: Callable[[int, Callable[[Tensor], Tensor]], Any]) -> list[Any]:
    """What `work` gives for each group, where every sum over processes is the mean over all groups by their weights."""
    count = len(weights)
    asked: list[Tensor] = [torch.zeros(())] * count
    mean: list[Tensor] = []
    results: list[Any] = [None] * count

    def average() -> None:
        mean[:] = [torch.einsum("g,g...->...", weights, torch.stack(asked).double())]

    barrier = threading.Barrier(count, average, timeout=60)

    def one(number: int) -> None:
        def reduce(sums: Tensor) -> Tensor:
            asked[number] = sums
            barrier.wait()
            return mean[0].clone()

        try:
            results[number] = work(number, reduce)
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result is not None for result in results)
    return results


def groups_of(setting: Setting) -> tuple[Tensor, Tensor]:
    """int [G, n], the responses of each group without regard to order, and fp64 [G], how likely it is."""
    table, n = setting.table, setting.samples
    chance = chances(table, setting)
    groups = torch.tensor(list(itertools.combinations_with_replacement(range(len(table.responses)), n)))
    counts = [math.factorial(n) / math.prod(math.factorial(row.count(r)) for r in set(row)) for row in groups.tolist()]
    return groups, chance[groups].prod(dim=1) * torch.tensor(counts, dtype=torch.float64)


def single(tensor: Tensor) -> Tensor:
    """Sums over one process."""
    return tensor


def expected(setting: Setting, by_group: bool = False) -> tuple[Tensor, float]:
    """fp64 [P], the gradient of one group on average; and its variance, summed over the P parameters.

    Args:
        setting: the case.
        by_group: each group is a step of its own: where statistics or averages are over a step.
    """
    groups, weights = groups_of(setting)
    of_logprobs, of_kl = setting.scores
    if setting.many:
        found = in_lockstep(weights, lambda number, reduce: coefficients(setting, groups[number], reduce))
        c, k = (torch.stack([pair[part] for pair in found]) for part in (0, 1))
    elif by_group:
        found = [coefficients(setting, group, single) for group in groups]
        c, k = (torch.stack([pair[part] for pair in found]) for part in (0, 1))
    else:
        c, k = (len(groups) * part.view(*groups.shape, -1) for part in coefficients(setting, groups.flatten(), single))
    own = torch.einsum("gnt,gntp->gp", c, of_logprobs[groups]) + torch.einsum("gnt,gntp->gp", k, of_kl[groups])
    mean = weights @ own
    return mean, float((weights * ((own - mean) ** 2).sum(dim=1)).sum())


def limit(setting: Setting) -> Tensor:
    """fp64 [P]: the gradient of one group that holds each response as often as it is likely."""
    table = setting.table
    times = (chances(table, setting) * 5**table.longest).round().long()
    rows = torch.arange(len(times)).repeat_interleave(times)
    c, k = coefficients(replace(setting, samples=len(rows)), rows, single)
    of_logprobs, of_kl = setting.scores
    return torch.einsum("rt,rtp->p", c, of_logprobs[rows]) + torch.einsum("rt,rtp->p", k, of_kl[rows])


def compared(found: Tensor, true: Tensor, variance: float | None = None) -> dict[str, float]:
    """Relative error, that at the best rescaling, cosine; and variance over the squared norm of the mean."""
    size = float(found.norm())
    cosine = float(found @ true) / max(size * float(true.norm()), 1e-300)
    numbers = {
        "error": float((found - true).norm() / true.norm()),
        "rescaled": float((found * (found @ true) / (found @ found) - true).norm() / true.norm())
        if cosine > 0
        else 1.0,
        "cosine": cosine,
    }
    if size < 1e-12:
        numbers = {"error": numbers["error"], "rescaled": 1.0, "cosine": 0.0}
    elif variance is not None:
        numbers["variance"] = variance / size**2
    return numbers


# What is paid ----------------------------------------------------------------------------------------------------


def letters(response: Response) -> list[tuple[int, float]]:
    """Every token but the end is a segment that ends at itself: 1 for token 0, −1/2 for token 1."""
    return [(t, (1.0, -0.5)[token]) for t, token in enumerate(response) if token != END]


def words(response: Response) -> list[tuple[int, float]]:
    """Token 1 goes on with a word of one token: whether a word ends is decided by the token behind it.

    As a full stop after a digit may end a sentence or go on with a number. A word of two tokens is paid 1, else −1/2.
    """
    ends: list[list[int]] = []
    for t, token in enumerate(response):
        if token == END:
            continue
        if token == 1 and ends and len(ends[-1]) == 1:
            ends[-1].append(t)
        else:
            ends.append([t])
    return [(word[-1], 1.0 if len(word) == 2 else -0.5) for word in ends]


def reads_on(response: Response) -> list[tuple[int, float]]:
    """Every token but the end is a segment, whose value depends on the last one: 1 where they are alike, else −1/2."""
    said = [token for token in response if token != END]
    return [(t, 1.0 if token == said[-1] else -0.5) for t, token in enumerate(said)]


def whole(response: Response) -> list[tuple[int, float]]:
    """One number a response, at its last token, that is no sum over tokens."""
    return [(len(response) - 1, float(len(set(response)) ** 2) / 4)]


def paid(table: Table, segments: Segments, credit: str) -> list[dict[int, float]]:
    """What each response is paid at which token, by the meaning of `reward.credit`, from what can be drawn alone.

    `decided`: at the first token behind which every response that can be drawn has that segment with that value.
    `revised`: at each token what a response that stopped there were worth, less what it was worth a token before.
    """
    everything = {row: segments(row) for row in table.responses}
    return [_paid(row, everything, segments, credit) for row in table.responses]


def _paid(
    row: Response, everything: Mapping[Response, list[tuple[int, float]]], segments: Segments, credit: str
) -> dict[int, float]:
    own, last = everything[row], len(row) - 1
    found: dict[int, float] = {}
    if credit == "revised":
        worth = [0.0, *(sum(value for _, value in segments(row[: t + 1])) for t in range(last))]
        worth.append(sum(value for _, value in own))
        return {t: now - before for t, (before, now) in enumerate(itertools.pairwise(worth))}
    for segment in own:
        token = {"end": segment[0], "outcome": last}.get(credit, -1)
        if credit == "decided":
            alike = [[y for y in everything if y[: t + 1] == row[: t + 1]] for t in range(last + 1)]
            token = next(t for t in range(last + 1) if all(segment in everything[y] for y in alike[t]))
        found[token] = found.get(token, 0.0) + segment[1]
    return found
