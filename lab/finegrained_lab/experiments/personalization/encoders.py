"""What retrieves a context's like: CIPHER and ICL with hashed words and with pretrained encoders, on StyleWorld."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.personalization.agent_runs import AgentRunsTable
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.text.tables import markdown_table

ENCODERS = ("words", "minilm", "mpnet")
LEARNERS = ("icl_edit_5", "cipher_1", "cipher_5")
_SHOWN, _FAILURES = "cipher_5", 5


@dataclass(frozen=True)
class PreludeEncodersTable(AgentRunsTable):
    """Agents that retrieve, with one encoder of contexts after the other; a run has the encoder's name."""

    title: ClassVar[str] = "PRELUDE on StyleWorld: encoders of contexts"
    stated_settings: ClassVar[tuple[str, ...]] = ("contexts", "foreign", "slips", "misreads", "notices")
    systems: ClassVar[Mapping[str, tuple[str, str]]] = {
        "oracle": ("words", "oracle"),
        "no_learning": ("words", "no_learning"),
        **{f"{agent}, {encoder}": (encoder, agent) for agent in LEARNERS for encoder in ENCODERS},
    }
    measures: ClassVar[tuple[str, ...]] = (
        "cost",
        "normalised",
        "untouched",
        "preference_accuracy",
        "retrieval_accuracy",
    )
    baselines: ClassVar[tuple[str, ...]] = ("cipher_5, words",)
    about: ClassVar[str] = (
        "{contexts} rounds, a context each, of five sources in mixed order; of a context's sentences {foreign:.0%} "
        "are another source's. The language model and the reader are scripted ({slips:.0%} of what a preference says "
        "is not followed, {misreads:.0%} of an edit's traits are taken for others, {notices:.0%} of those that the "
        "draft had are seen); the encoders are not: hashed `words`, which learn nothing, all-MiniLM-L6-v2 and "
        "all-mpnet-base-v2. The paper compares MPNet and BERT; a plain BERT is read too, none was at hand. Measures "
        "as in `prelude_world.md`."
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The rows; what was learnt of each source at the end, and the dearest rounds, of the first seed."""
        seed, root = next(iter(roots.items()))
        wanted = read_json(root / "world" / "preferences.json")
        learnt, failures = [], []
        for encoder in ENCODERS:
            rounds = [one for one in read_jsonl(root / encoder / "rounds.jsonl") if one["agent"] == _SHOWN]
            learnt += [_last(encoder, source, rounds, str(wanted[source])) for source in wanted]
            failures += _dearest(encoder, rounds, wanted)
        return {**super().measure(roots), "shown_seed": seed, "learnt": learnt, "failures": failures}

    def body(self, result: Mapping[str, Any]) -> str:
        """The rows, what was learnt, where it failed."""
        shown = f"`{_SHOWN}` of seed {result['shown_seed']}"
        learnt, failures = result["learnt"], result["failures"]
        return (
            f"{super().body(result)}\n## What was learnt\n\n{shown}: by which preference the last draft of each source "
            "was written; `right`: the share of the source's last ten drafts whose preference is closest to the true "
            f"one.\n\n{markdown_table(learnt, list(learnt[0]))}\n## Where it failed\n\n{shown}: the dearest rounds of "
            f"the second half.\n\n{markdown_table(failures, list(failures[0]))}"
        )


def _last(encoder: str, source: str, rounds: Sequence[Mapping[str, Any]], wanted: str) -> dict[str, Any]:
    own = [one for one in rounds if one["source"] == source][-10:]
    right = sum(one["closest"] == source for one in own) / len(own)
    return {
        "encoder": encoder,
        "source": source,
        "wanted": wanted,
        "last": own[-1]["preference"] or "–",
        "right": right,
    }


def _dearest(encoder: str, rounds: Sequence[Mapping[str, Any]], wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    late = sorted(rounds[len(rounds) // 2 :], key=lambda one: -one["distance"])[:_FAILURES]
    return [
        {
            "encoder": encoder,
            "round": one["number"],
            "source": one["source"],
            "wanted": wanted[one["source"]],
            "written by": one["preference"] or "–",
            "retrieved of its source": f"{one['retrieved'].count(one['source'])} of {len(one['retrieved'])}",
            "cost": one["distance"],
        }
        for one in late
    ]
