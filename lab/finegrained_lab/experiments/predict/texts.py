"""What every reward model of the experiment is shown: samples, changed answers, trivial ones, bought ones.

Made once a world from files and seeds; which texts there are depends on no reward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.outputs import OutputRecord
from finegrained_rlhf.rewards.stress.changes import Change


@dataclass(frozen=True)
class Shown:
    """All texts of a world.

    Attributes:
        pool: prompts with their samples from the first policy.
        changes: to answers to dev prompts.
        edits: by prompt of the pool, answers that somebody makes who knows no truth.
        trivial: by dev prompt answers that take no skill, and `gold`.
        prompts: all of them, by id.
    """

    pool: Sequence[OutputRecord]
    changes: Sequence[Change]
    edits: dict[str, list[str]]
    trivial: dict[str, dict[str, str]]
    prompts: dict[str, Prompt]

    def texts(self) -> Iterator[tuple[str, str]]:
        """(question's id, text), each once."""
        seen = dict.fromkeys((record.id, text) for record in self.pool for text in record.outputs)
        seen |= dict.fromkeys(
            (change.record, text) for change in self.changes for text in (change.base, change.changed)
        )
        seen |= dict.fromkeys((name, text) for name, texts in self.edits.items() for text in texts)
        seen |= dict.fromkeys((name, text) for name, texts in self.trivial.items() for text in texts.values())
        yield from seen


def free_edits(
    name: str,
    own: Sequence[str],
    strangers: Sequence[Sequence[str]],
    fillers: Sequence[str],
    *,
    count: int,
    seed: int,
) -> list[str]:
    """Answers made without knowing what is asked or true: windows of sentences, of others too, repeats, and fillers.

    Args:
        name: id of the prompt.
        own: sentences that lie before whoever answers it.
        strangers: the same of other prompts.
        fillers: sentences that say nothing.
        count: of the answers, which are distinct.
        seed: of all draws.
    """
    rng = random.Random(stable_hash(seed, "edits", name))
    made: dict[str, None] = {}
    while len(made) < count:
        foreign = rng.choice(strangers)
        sentences = list(rng.choice([own, own, foreign]))
        first, length = rng.randrange(len(sentences)), rng.randint(1, 6)
        window = sentences[first : first + length]
        extra = rng.choice(["nothing", "repeat", "filler", "foreign"])
        window += {
            "nothing": [],
            "repeat": [rng.choice(window)],
            "filler": [rng.choice(fillers)],
            "foreign": [rng.choice(foreign)],
        }[extra]
        made[" ".join(window)] = None
    return list(made)
