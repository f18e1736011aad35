"""The grid of ToneWorld: classifiers of toxicity as rewards, the oracle's battery, and the true toxicity of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from finegrained_lab.experiments.predict.grid import Component, RewardModelGrid
from finegrained_lab.experiments.predict.rewards import Measures
from finegrained_lab.experiments.predict.table import PredictTable
from finegrained_lab.experiments.predict.texts import Shown, free_edits
from finegrained_lab.worlds.tone.annotators import IN_BATTERY
from finegrained_lab.worlds.tone.changes import BATTERY
from finegrained_lab.worlds.tone.oracle import toxicity
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.detoxification.prompts import read_continuation_prompts
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.rewards import ClassifierScorer, PrefixDifferenceScorer
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.rewards.stress.changes import StressRecord, run_changes

SORRY = "Sorry, I did not mean that."


@dataclass(frozen=True, kw_only=True)
class ToneWorldGrid(RewardModelGrid):
    """What each sentence adds to a classifier's score of the text so far; see `RewardModelGrid`.

    The classifiers lie in `output_dir/models` already, trained and selected on labels of the same annotators.

    Attributes:
        prompts_dev: file of dev prompts with what truly follows.
    """

    kinds: ClassVar = ("toxicity",)
    spoils: ClassVar = {"none": None, **dict.fromkeys(IN_BATTERY, "toxicity")}
    in_battery: ClassVar = IN_BATTERY
    surface: ClassVar = tuple(change.name for change in BATTERY if change.family == "surface")

    prompts_dev: InputFile

    @cached_property
    def shown(self) -> Shown:
        """Samples of test prompts; what follows dev prompts, changed and trivial; edits of sentences of prompts."""
        samples, dev = read_outputs(self.pool)[: self.questions], read_outputs(self.outputs_dev)
        gold = {row.prompt.text: row.continuation.text.strip() for row in read_continuation_prompts(self.prompts_dev)}
        records = [StressRecord(one.id, one.question, (), gold[one.text], one.outputs) for one in dev]
        sentences = {one.id: re.findall(r"[^.]+\.", one.question) for one in samples}
        edits = {
            name: free_edits(
                name,
                own,
                [foreign for other, foreign in sentences.items() if other != name],
                (SORRY, "The garden is quiet."),
                count=self.edits,
                seed=self.seed,
            )
            for name, own in list(sentences.items())[: self.bought]
        }
        return Shown(
            samples,
            run_changes(records[: self.changed], BATTERY, self.seed),
            edits,
            {one.id: {"restated": one.question, "sorry": SORRY, "gold": one.gold} for one in records},
            {one.id: Prompt(one.id, one.text, ()) for one in [*samples, *dev]},
        )

    def truth(self) -> Measures:
        """The mean toxicity."""
        counts = {one.id: {text: (toxicity(text), 1.0) for text in one.outputs} for one in self.shown.pool}
        return Measures(counts, lambda sums: sums[0] / sums[1], lambda row: -row[0])

    def scorer(self, component: Component) -> Scorer:
        """The classifier, sentence by sentence."""
        scorer = PrefixDifferenceScorer(ClassifierScorer(str(self.directory(component)), "toxic", batch_size=256))
        scorer.setup("cpu")  # type: ignore[arg-type]
        return scorer

    def dev_accuracy(self, component: Component) -> float:
        """On the texts that it was selected by."""
        return float(read_json(self.directory(component) / "metrics.json")["dev"]["accuracy"])

    def policy_argument(self, component: Component) -> str:
        """What `train-ppo` is told of the classifier."""
        return f"reward.components.toxicity.scorer.path={self.directory(component)}"


@dataclass(frozen=True)
class ToneWorldPredictions(PredictTable):
    """The page of ToneWorld."""

    world: ClassVar[str] = "ToneWorld"
    about: ClassVar[str] = (
        "Rewards of ToneWorld: what each sentence adds to the toxicity of the text so far, by a classifier (a tiny "
        "BERT, 32 or 64 wide) that learnt from shares of five annotators, who never see one kind of insult (the "
        "fault) and turn some of their answers round at random (the noise). `variant`: no insult in the spelling that"
        " is seldom seen is toxic; `word`: one of the three strong insults is not; `exclaimed`: none in `What a … "
        "that`; `driver`: none about a driver; `sorry`: no text with an apology; `quoted`: an insult that is quoted "
        "is toxic too. Insults, apologies and the seldom spelling are more frequent than in other experiments of this"
        " world. No change of the battery says or touches that one insult, a sentence that begins with `What`, or a "
        "driver. Outcome: the true mean toxicity, by the oracle, of best of n from one pool of 64 continuations a "
        "prompt of the language model that runs start from (SFT), in expectation over draws."
    )
    error: ClassVar[str] = "true mean toxicity"
    validated: ClassVar[str] = "continuations of dev prompts, sampled as in training"
    trivial: ClassVar[str] = "an apology or the prompt itself"

    def error_of(self, line: Mapping[str, Any]) -> float:
        """The mean toxicity."""
        return float(line["truth/toxicity"])
