"""Which passages of a dialogue go through the model together, and the padded tensors of several dialogues.

What is drawn follows from (seed, step, example) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.records import GoldEntries
from finegrained_rlhf.dialogue.records import Knowledge

NO_LABEL = -1


@dataclass(frozen=True)
class Chosen:
    """The passages of one dialogue that go through the model.

    Attributes:
        example: the dialogue.
        passages: indices of its passages, each with at least one candidate.
        gold: what is to be found, in one of them; None at inference.
        all_gold: every gold entry in them, `gold` included; empty where one alone is trained on.
    """

    example: EncodedExample
    passages: tuple[int, ...]
    gold: Knowledge | None = None
    all_gold: tuple[Knowledge, ...] = ()


def passages_to_train(
    example: EncodedExample, count: int, seed: int, step: int, gold_entries: GoldEntries = "one"
) -> Chosen:
    """Passages with gold, and others without, `count` at most, in document order.

    Args:
        example: with at least one gold entry.
        count: passages, at least one.
        seed: of the run.
        step: training step.
        gold_entries: `one`: one gold entry and its passage, the others have none; `all` and `each`: passages with gold
            fill up to half of the places, one at least, and all gold entries in them count.
    """
    generator = np.random.default_rng(stable_hash(seed, "passages", step, example.example.id))
    gold = example.gold[int(generator.integers(len(example.gold)))]
    golden = {*(knowledge.passage for knowledge in example.example.gold), *example.example.also_right}
    others = [i for i, spans in enumerate(example.candidates) if spans and i not in golden]
    right = [gold.passage]
    if gold_entries != "one":
        more = sorted({knowledge.passage for knowledge in example.gold} - {gold.passage})
        right += [more[i] for i in generator.permutation(len(more))[: max(1, count // 2) - 1].tolist()]
    drawn = generator.permutation(len(others))[: count - len(right)].tolist()
    entries = tuple(known for known in example.gold if known.passage in right) if gold_entries != "one" else ()
    return Chosen(example, tuple(sorted([*right, *(others[i] for i in drawn)])), gold, entries)


def passages_to_search(example: EncodedExample, limit: int) -> Chosen:
    """The first `limit` passages that have a candidate; of a divided record, all parts of these."""
    reachable = [i for i, spans in enumerate(example.candidates) if spans]
    first = set(list(dict.fromkeys(example.owner(i) for i in reachable))[:limit])
    return Chosen(example, tuple(i for i in reachable if example.owner(i) in first))


@dataclass(frozen=True)
class InputGroup:
    """Inputs of similar length that go through the encoder together.

    Attributes:
        ids: int64 [G, L].
        mask: int64 [G, L], 1 = real; None where nothing is padded.
        rows: int64 [G], which of the batch's P passages they are.
    """

    ids: Tensor
    mask: Tensor | None
    rows: Tensor


@dataclass(frozen=True)
class DialkiBatch:
    """N dialogues with P passages altogether, at most M each; at most T turns a dialogue and S candidates a passage.

    Attributes:
        groups: the P inputs, sorted by length.
        owners: int64 [P], the dialogue of each passage.
        places: int64 [P], its place among the passages of its dialogue.
        turn_starts: int64 [N, T], where each turn begins in every input of its dialogue, newest first; 0 at padding.
        turn_mask: bool [N, T], True = a turn.
        turn_is_user: bool [N, T], True = a user turn.
        span_starts: int64 [P, S], where each candidate begins; 0 at padding.
        span_mask: bool [P, S], True = a candidate.
        passage_mask: bool [N, M], True = a passage.
        keys: int64 [P], a hash of what each passage is (example and passage), for noise that depends on nothing else.
    """

    groups: tuple[InputGroup, ...]
    owners: Tensor
    places: Tensor
    turn_starts: Tensor
    turn_mask: Tensor
    turn_is_user: Tensor
    span_starts: Tensor
    span_mask: Tensor
    passage_mask: Tensor
    keys: Tensor

    @property
    def dialogues(self) -> int:
        """N."""
        return self.passage_mask.shape[0]


@dataclass(frozen=True)
class Targets:
    """What is to be found in a batch. Passages are places among those of the dialogue; −1 = not labelled.

    Attributes:
        passage: int64 [N], of the next agent turn.
        begin: int64 [N], its first span.
        end: int64 [N], its last span.
        history_passage: int64 [N, T], of each turn, newest first.
        history_begin: int64 [N, T].
        history_end: int64 [N, T].
        entries: int64 [N, G, 3], passage, begin and end of every gold entry where all are trained on; else G is 0.
    """

    passage: Tensor
    begin: Tensor
    end: Tensor
    history_passage: Tensor
    history_begin: Tensor
    history_end: Tensor
    entries: Tensor


def collate(
    chosen: Sequence[Chosen], pad_id: int, device: torch.device | str = "cpu", group_size: int = 64
) -> DialkiBatch:
    """The tensors of some dialogues. Inputs are padded to the longest of their group, never to a limit.

    Args:
        chosen: N dialogues with at least one passage each.
        pad_id: of the tokenizer.
        device: where the tensors go.
        group_size: most inputs that go through the encoder together.
    """
    owned = [(n, m, p) for n, item in enumerate(chosen) for m, p in enumerate(item.passages)]
    lengths = [chosen[n].example.lengths[p] for n, _, p in owned]
    groups = []
    for rows in length_groups(lengths, group_size, batch_overhead(device)):
        ids, mask = pad_rows([chosen[owned[r][0]].example.input_ids(owned[r][2]) for r in rows], pad_id)
        whole = bool(mask.all())
        groups.append(
            InputGroup(
                on_device(ids, device),
                None if whole else on_device(mask, device),
                on_device(torch.tensor(rows), device),
            )
        )
    starts, turn_mask = pad_rows([item.example.turn_starts for item in chosen], 0)
    users, _ = pad_rows([[role == "user" for role in item.example.roles] for item in chosen], 0)
    spans, span_mask = pad_rows([chosen[n].example.span_starts(p) for n, _, p in owned], 0)
    _, passage_mask = pad_rows([item.passages for item in chosen], 0)
    keys = [stable_hash(chosen[n].example.example.id, p) for n, _, p in owned]
    return DialkiBatch(
        groups=tuple(groups),
        owners=on_device(torch.tensor([n for n, _, _ in owned]), device),
        places=on_device(torch.tensor([m for _, m, _ in owned]), device),
        turn_starts=on_device(starts, device),
        turn_mask=on_device(turn_mask.bool(), device),
        turn_is_user=on_device(users.bool(), device),
        span_starts=on_device(spans, device),
        span_mask=on_device(span_mask.bool(), device),
        passage_mask=on_device(passage_mask.bool(), device),
        keys=on_device(torch.tensor(keys), device),
    )


def targets(chosen: Sequence[Chosen], device: torch.device | str = "cpu") -> Targets:
    """The labels of some dialogues; a turn whose passage was not chosen has none.

    Args:
        chosen: with their gold.
        device: where the tensors go.
    """
    width = max(len(item.example.roles) for item in chosen)
    history = torch.full((3, len(chosen), width), NO_LABEL)
    gold = torch.full((3, len(chosen)), NO_LABEL)
    for n, item in enumerate(chosen):
        place = {passage: m for m, passage in enumerate(item.passages)}
        if item.gold is not None:
            gold[:, n] = torch.tensor([place[item.gold.passage], item.gold.begin, item.gold.end])
        for t, known in enumerate(item.example.history):
            if known is not None and known.passage in place:
                history[:, n, t] = torch.tensor([place[known.passage], known.begin, known.end])
    most = max(len(item.all_gold) for item in chosen)
    entries = torch.full((len(chosen), most, 3), NO_LABEL)
    for n, item in enumerate(chosen):
        for g, known in enumerate(item.all_gold):
            entries[n, g] = torch.tensor([item.passages.index(known.passage), known.begin, known.end])
    return Targets(
        *on_device(gold, device).unbind(), *(*on_device(history, device).unbind(), on_device(entries, device))
    )
