"""How rewards rank StyleWorld's drafts: against what their edits cost, and by the best of several."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from finegrained_lab.experiments.predict.pool import spearman
from finegrained_lab.worlds.style.drafts import read_wanted
from finegrained_lab.worlds.style.reader import StyleReader
from finegrained_lab.worlds.style.styles import DIMENSIONS, bare_sentences, rendered
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.personalization.span_feedback import NOTE_TITLE, edit_cost
from finegrained_rlhf.rewards.protocol import Scorer


@dataclass(frozen=True, kw_only=True)
class RankDrafts(Settings):
    """Score drafts in styles at random, and compare with what the reader's edits cost.

    Attributes:
        contexts: file of contexts.
        preferences: file of the true preference by source.
        output: JSON file of what `run` returns.
        scorers: by name; a draft's score is the sum of its segments.
        drafts: of a context.
        most: contexts that are taken, the first ones.
        notes: whether the scorers are shown the reader's preference, as a passage.
        seed: of the styles.
    """

    contexts: InputFile
    preferences: InputFile
    output: OutputFile
    scorers: Mapping[str, Scorer]
    drafts: Annotated[int, at_least(2)] = 16
    most: Annotated[int, at_least(1)] = 120
    notes: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.scorers:
            raise ConfigError("scorers: name at least one")

    def run(self) -> dict[str, Any]:
        """Draw, edit, score, write, print a line a scorer.

        Returns:
            `mean_cost`, `best_cost` (of the best draft of each context by the cost itself), and by scorer `within`
            (Spearman's rank correlation with −cost among the drafts of a context, mean), `over` (among all drafts) and
            `best_of` (what the best draft by the scorer costs, mean).

        Raises:
            DataError: a file is damaged.
        """
        reader, prompts, texts, costs = StyleReader(strict=True), [], [], []
        for one, preference in read_wanted(self.contexts, self.preferences)[: self.most]:
            rng = random.Random(stable_hash(self.seed, "ranked drafts", one.id))
            notes = [Passage.uncut("", preference, NOTE_TITLE)] if self.notes else []
            prompt = Prompt(one.id, one.text, (), {"question": one.text, "passages": notes})
            for _ in range(self.drafts):
                style = {key: rng.choice(values) for key, values in DIMENSIONS.items()}
                texts.append(rendered(bare_sentences(one.text), style))
                costs.append(edit_cost(texts[-1], reader.edit(one.text, preference, texts[-1])).distance)
                prompts.append(prompt)
        groups = [range(start, start + self.drafts) for start in range(0, len(texts), self.drafts)]
        best = statistics.mean(min(costs[i] for i in group) for group in groups)
        result: dict[str, Any] = {"mean_cost": statistics.mean(costs), "best_cost": best, "scorers": {}}
        for name, scorer in self.scorers.items():
            scorer.setup("cpu")  # type: ignore[arg-type]
            scores = [sum(row) for row in scorer.score(prompts, texts).values]
            picked = [costs[max(group, key=scores.__getitem__)] for group in groups]
            within = [_agreement(scores, costs, group) for group in groups]
            measured = {
                "within": statistics.mean(within),
                "over": _agreement(scores, costs, range(len(texts))),
                "best_of": statistics.mean(picked),
            }
            result["scorers"][name] = measured
            print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in measured.items()))
        write_json(self.output, result)
        return result


def _agreement(scores: Sequence[float], costs: Sequence[float], rows: Sequence[int]) -> float:
    """Spearman's rank correlation of scores with −cost; 0 where one of them does not differ."""
    return spearman([scores[i] for i in rows], [-costs[i] for i in rows]) or 0.0
