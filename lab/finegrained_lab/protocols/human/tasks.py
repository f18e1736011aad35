"""Tasks for raters in Label Studio: a turn each, the systems in an order of its own for every rater and turn.

Raters see `System 1`, `System 2`, …; which system stands where is in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar
from xml.sax.saxutils import quoteattr

import numpy as np

from finegrained_lab.protocols.human.ratings import NOTHING_TO_RATE, SCALES, TurnRating, write_ratings
from finegrained_lab.published.inscit.data import (
    INSCIT_DATA,
    InscitTurn,
    check_corpus_keys,
    passages_by_id,
    read_known_inscit,
    turns_of,
)
from finegrained_lab.published.inscit.predictions import InscitPrediction, Predictions, read_predictions
from finegrained_rlhf.annotation.label_studio import annotations_of_task
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, read_json, write_json, write_text
from finegrained_rlhf.core.markers import CorpusPath, InputFile, OutputDirectory, OutputFile, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash

_FORMAT = "finegrained-inscit-human-evaluation/1"
HUMAN = "human"
"""The system whose answers are the first labels of the data."""
QUESTIONS: Mapping[str, str] = {
    "evidence_utility": "Evidence: how useful are the passages for what the user wants to know?",
    "factual_consistency": "Facts: does the response say what its passages say?",
    "coherence": "Coherence: does the response fit the conversation?",
}
_NOTHING: Mapping[str, str] = {"evidence_utility": "no evidence", "factual_consistency": "no facts"}
MOST, LEAST = "Most comprehensive (one or more)", "Least comprehensive (none, one or more)"


def scale_choices(scale: str) -> dict[str, int]:
    """The choices of a scale as raters see them, and their values."""
    return {_NOTHING.get(scale, "") if value == NOTHING_TO_RATE else f"{value:+d}": value for value in SCALES[scale]}


@dataclass(frozen=True, kw_only=True)
class MakeHumanEvaluation(Settings):
    """Write a Label Studio project for each rater; the job of `finegrained make-human-evaluation`.

    Attributes:
        data: file of conversations.
        predictions: file of predictions by the name of the system.
        human: whether the first labels of the data are a system too, `human`.
        raters: their names; each rates every turn.
        output_dir: directory of the tasks; made whole or not at all.
        conversations: how many are drawn; None or more than there are takes all.
        corpus: of the passages that the data does not hold; None shows their ids alone.
        store: directory of the corpus's `PassageStore`; None reads the corpus from its beginning.
        seed: of conversations and orders.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    predictions: Mapping[str, InputFile]
    human: bool = True
    raters: Sequence[str]
    output_dir: OutputDirectory
    conversations: Annotated[int | None, at_least(1)] = 50
    corpus: CorpusPath | None = None
    store: InputFile | None = None
    seed: Seed = 0
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def __post_init__(self) -> None:
        names = list(self.raters)
        if not names or len(set(names)) < len(names) or not all(name.strip() for name in names):
            raise ConfigError(f"raters: expected one name or more, each once, got {names}")
        if HUMAN in self.predictions:
            raise ConfigError(f"predictions: {HUMAN} names the labels of the data, expected another name")
        if len(self.predictions) + self.human < 2:
            raise ConfigError("predictions: expected two systems or more, the human included")
        check_corpus_keys(self.corpus, self.store)

    def run(self) -> None:
        """Read, draw, write; prints one line.

        Raises:
            DataError: a file is damaged, or predictions are not those of the data.
        """
        reading = read_known_inscit(self.data, self.known_passages)
        everything = turns_of(reading.conversations)
        systems: dict[str, Predictions] = {
            name: read_predictions(file, everything) for name, file in self.predictions.items()
        }
        if self.human:
            systems[HUMAN] = {turn.key: _first_label(turn) for turn in everything}
        generator = np.random.default_rng(stable_hash(self.seed, "conversations"))
        order = generator.permutation(len(reading.conversations)).tolist()[: self.conversations]
        chosen = [turn for i in sorted(order) for turn in reading.conversations[i].turns]
        texts = self._texts(everything, chosen, systems)
        with atomic_directory(self.output_dir) as directory:
            orders = {}
            for number, rater in enumerate(self.raters, start=1):
                folder = directory / f"rater_{number}"
                folder.mkdir()
                orders[rater] = {turn.name: self._order(rater, turn, list(systems)) for turn in chosen}
                tasks = [_task(turn, orders[rater][turn.name], systems, texts) for turn in chosen]
                write_json(folder / "tasks.json", tasks)
                write_text(folder / "label_config.xml", rating_config(len(systems)))
            turns = {turn.name: {"conv_id": turn.conversation, "turn_id": turn.number} for turn in chosen}
            write_json(directory / "manifest.json", {"format": _FORMAT, "turns": turns, "orders": orders})
        print(f"{len(chosen)} turns of {len(order)} conversations for {len(self.raters)} raters -> {self.output_dir}")

    def _order(self, rater: str, turn: InscitTurn, systems: Sequence[str]) -> list[str]:
        generator = np.random.default_rng(stable_hash(self.seed, "order", rater, turn.conversation, turn.number))
        return [systems[i] for i in generator.permutation(len(systems)).tolist()]

    def _texts(
        self, everything: Sequence[InscitTurn], chosen: Sequence[InscitTurn], systems: Mapping[str, Predictions]
    ) -> dict[str, str]:
        """What is shown of each passage that a system names."""
        named = {name for predictions in systems.values() for turn in chosen for name in predictions[turn.key].evidence}
        known = passages_by_id(named, everything, self.corpus, self.store)
        shown = {one.id: f"[{one.id}] {' | '.join(one.titles)}\n{one.text}" for one in known.values()}
        return {name: shown.get(name, f"[{name}]") for name in named}


def _first_label(turn: InscitTurn) -> InscitPrediction:
    label = turn.labels[0]
    return InscitPrediction(label.response, tuple(dict.fromkeys(one.id for one in label.evidence)), label.response_type)


def _task(
    turn: InscitTurn, order: Sequence[str], systems: Mapping[str, Predictions], texts: Mapping[str, str]
) -> dict[str, Any]:
    dialogue = "\n\n".join(f"{'Agent' if i % 2 else 'User'}: {text}" for i, text in enumerate(turn.context))
    data = {"task": turn.name, "context": dialogue}
    for place, system in enumerate(order, start=1):
        one = systems[system][turn.key]
        data[f"response_{place}"] = one.response or "(nothing)"
        data[f"evidence_{place}"] = "\n\n".join(texts[name] for name in one.evidence) or "(no evidence)"
    return {"data": data}


def rating_config(systems: int) -> str:
    """The XML of the labelling interface for so many systems."""
    lines = ["<View>", '  <Header value="Conversation"/>', '  <Text name="context" value="$context"/>']
    for place in range(1, systems + 1):
        lines += [f'  <Header value="System {place}"/>', f'  <Text name="response_{place}" value="$response_{place}"/>']
        lines += [f'  <Text name="evidence_{place}" value="$evidence_{place}"/>']
        for scale, question in QUESTIONS.items():
            head = f'name="{scale}_{place}" toName="response_{place}" choice="single" required="true"'
            lines += [f'  <Header value={quoteattr(question)} size="5"/>', f'  <Choices {head} showInline="true">']
            lines += [f"    <Choice value={quoteattr(choice)}/>" for choice in scale_choices(scale)]
            lines.append("  </Choices>")
    for name, title in (("most", MOST), ("least", LEAST)):
        lines += [
            f"  <Header value={quoteattr(title)}/>",
            f'  <Choices name="{name}" toName="context" choice="multiple">',
        ]
        lines += [f'    <Choice value="System {place}"/>' for place in range(1, systems + 1)]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>", ""])


@dataclass(frozen=True, kw_only=True)
class ReadHumanEvaluation(Settings):
    """Read what raters exported; the job of `finegrained read-human-evaluation`.

    Attributes:
        exports: JSON export of a rater's project by his name.
        tasks: directory that `MakeHumanEvaluation` wrote.
        output: JSON-lines file of ratings; written whole or not at all.
    """

    exports: Mapping[str, InputFile]
    tasks: InputFile
    output: OutputFile

    def run(self) -> list[TurnRating]:
        """Read everything or nothing; prints one line, which says how many turns are not rated.

        Raises:
            DataError: an export is damaged, of other tasks, has a turn twice, or a turn is not rated as it should be;
                the error names file, turn and field.
        """
        manifest = read_json(Path(self.tasks) / "manifest.json")
        if not isinstance(manifest, Mapping) or manifest.get("format") != _FORMAT:
            raise DataError(f"expected format {_FORMAT!r}", file=Path(self.tasks) / "manifest.json")
        if not self.exports:
            raise DataError("exports: expected {NAME: FILE} of one rater or more")
        ratings = {
            (rater, name): rating
            for rater, file in self.exports.items()
            for name, rating in self._of_rater(rater, file, manifest)
        }
        write_ratings(self.output, ratings.values())
        left = len(manifest["turns"]) * len(self.exports) - len(ratings)
        missing = f", {left} turns are not rated" if left else ""
        print(f"{len(ratings)} ratings of {len(self.exports)} raters{missing} -> {self.output}")
        return list(ratings.values())

    def _of_rater(self, rater: str, file: str, manifest: Mapping[str, Any]) -> Iterator[tuple[str, TurnRating]]:
        """The name of each turn that a rater has rated, and the rating."""
        if rater not in manifest["orders"]:
            raise DataError(f"{rater!r} is none of the raters {', '.join(manifest['orders'])}", file=file)
        seen: set[str] = set()
        for number, value in enumerate(_export(file)):
            name: Any = number
            try:
                task = as_object(value, "(task)")
                name = get_field(as_object(get_field(task, "data"), "data"), "task")
                require(name in manifest["turns"], f"{name!r} is none of the turns", "data.task")
                require(name not in seen, "is there twice", "data.task")
                seen.add(name)
                _, finished = annotations_of_task(task)
                if finished:
                    done = as_list(get_field(finished[0], "result"), "result")
                    rating = _rated(done, manifest["orders"][rater][name], manifest["turns"][name], rater)
                else:
                    continue
            except DataError as error:
                raise error.at(file=file, record=name) from None
            yield name, rating


def _export(file: str) -> list[Any]:
    try:
        return as_list(read_json(file), "(export)")
    except DataError as error:
        raise error.at(file=file) from None


def _rated(result: Sequence[Any], order: Sequence[str], at: Mapping[str, Any], rater: str) -> TurnRating:
    choices: dict[str, list[str]] = {}
    for i, part in enumerate(result):
        row = as_object(part, f"result[{i}]")
        value = as_object(get_field(row, "value"), f"result[{i}].value")
        choices.setdefault(str(get_field(row, "from_name")), []).extend(map(str, value.get("choices", [])))
    values: dict[str, dict[str, int]] = {}
    for place, system in enumerate(order, start=1):
        values[system] = {}
        for scale in SCALES:
            name, known = f"{scale}_{place}", scale_choices(scale)
            chosen = choices.get(name, [])
            right = len(chosen) == 1 and chosen[0] in known
            require(right, f"expected one of {', '.join(known)}, got {chosen}", name)
            values[system][scale] = known[chosen[0]]
    places = {f"System {place}": system for place, system in enumerate(order, start=1)}
    for name in ("most", "least"):
        unknown = [choice for choice in choices.get(name, []) if choice not in places]
        require(not unknown, f"expected some of {', '.join(places)}, got {unknown}", name)
    most, least = (frozenset(places[choice] for choice in choices.get(name, [])) for name in ("most", "least"))
    return TurnRating(at["conv_id"], at["turn_id"], rater, values, most, least)
