"""Do the reward models of a PPO run still agree with the oracle on what the policy writes as it is trained?

They learned from outputs of the first policy; RL moves the policy away from them. Reads the responses that a run keeps
(`samples/step_N.jsonl`) with every component's own values, and judges them by the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.factworld.grammar import FactSource, parse_source, split_passages
from finegrained_rlhf.factworld.oracle import Judgement, judge
from finegrained_rlhf.feedback.outputs import get_field
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.metrics.detection import Confusion, share
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import OracleMark, read_samples, sample_files, write_marks
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter, Span
from finegrained_rlhf.text.tables import cell, markdown_table

Verdicts = dict[Span, bool | None]
"""For each segment whether it has an error; None where the component was never taught to judge it."""
COLUMNS = (
    *("step", "component", "items", "errors", "claims"),
    *("agreement", "precision", "recall", "f1", "false_alarm_rate"),
)


def relevance_verdicts(judgement: Judgement) -> Verdicts:
    """Of each sub-sentence: has it a C1 error?"""
    return {piece.span: piece.c1 is not None for piece in judgement.sub_sentences}


def factuality_verdicts(judgement: Judgement) -> Verdicts:
    """Of each sentence: has it a C2 error? None where its only error is C1, as in the labels of the reward model."""
    verdicts: Verdicts = {}
    for i, span in enumerate(judgement.sentences):
        pieces = [piece for piece in judgement.sub_sentences if piece.sentence == i]
        wrong = any(piece.c2 is not None for piece in pieces)
        verdicts[span] = None if not wrong and any(piece.c1 is not None for piece in pieces) else wrong
    return verdicts


def given_share(judgement: Judgement) -> float:
    """Share of the asked facts that the answer gives, whatever their value; 1 where none can be given."""
    return sum(judgement.given) / len(judgement.given) if judgement.given else 1.0


def fewer_errors(judgement: Judgement) -> float:
    """Minus the number of errors of all kinds: what the annotator's preferences follow from."""
    return -float(judgement.errors)


SEGMENTS: Mapping[str, Callable[[Judgement], Verdicts]] = {
    "relevance": relevance_verdicts,
    "factuality": factuality_verdicts,
}
RESPONSES: Mapping[str, Callable[[Judgement], float]] = {"completeness": given_share, "preference": fewer_errors}


@dataclass(frozen=True)
class OracleAgreement:
    """Agreement of one component with the oracle on the samples of one training step.

    Attributes:
        step: training step; the samples were drawn before its update, so those of step 1 are the first policy's.
        items: segments that were compared; of a component that scores whole responses, ordered pairs: two samples of
            one prompt that the oracle does not find equally good.
        agreement: share of the segments on which both say the same, or of the pairs that both order alike (equal
            scores do not); None without items.
        precision: of the class "has error"; None for pairs, and where nothing is claimed.
        recall: None for pairs, and where there is no error.
        f1: None for pairs, and without errors and claims.
        false_alarm_rate: share of the segments without an error that are claimed; None for pairs. Like recall, and
            unlike agreement and precision, it does not change merely because errors become rare.
        errors: segments with an error by the oracle; None for pairs.
        claims: segments with an error by the component; None for pairs.
    """

    step: int
    items: int
    agreement: float | None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    false_alarm_rate: float | None = None
    errors: int | None = None
    claims: int | None = None


@dataclass(frozen=True)
class JudgedSample:
    """A sampled response with the oracle's judgement and what the components said.

    Attributes:
        prompt: id of the prompt.
        judgement: the oracle's.
        scores: by component, (span, raw value) of each segment in order.
    """

    prompt: str
    judgement: Judgement
    scores: Mapping[str, Sequence[tuple[Span, float]]]


def segment_agreement(
    step: int, name: str, samples: Sequence[JudgedSample], claims_error: Callable[[float], bool]
) -> OracleAgreement:
    """Agreement of a component that judges segments.

    Args:
        step: training step.
        name: of the component, a key of `SEGMENTS`.
        samples: of the step.
        claims_error: whether a raw value says "has error".

    Raises:
        DataError: a sample's segments are not the oracle's own.
    """
    truth, claims = [], []
    for sample in samples:
        verdicts, scores = SEGMENTS[name](sample.judgement), sample.scores.get(name, ())
        if [span for span, _ in scores] != list(verdicts):
            raise DataError(
                f"{name} scored the segments {[span for span, _ in scores]}, the oracle cuts {list(verdicts)}; "
                "is segmenter=… the one of the run?",
                record=sample.prompt,
                field="segments",
            )
        for span, value in scores:
            if (has_error := verdicts[span]) is not None:
                truth.append(has_error)
                claims.append(claims_error(value))
    confusion = Confusion.of(truth, claims)
    ratios = (confusion.accuracy, confusion.precision, confusion.recall, confusion.f1, confusion.false_alarm_rate)
    return OracleAgreement(step, confusion.items, *ratios, errors=confusion.errors, claims=confusion.claims)


def pair_agreement(step: int, name: str, samples: Sequence[JudgedSample]) -> OracleAgreement:
    """Agreement of a component that scores whole responses, over pairs of samples of one prompt.

    Raises:
        DataError: a sample has not exactly one value of the component.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        scores = sample.scores.get(name, ())
        if len(scores) != 1:
            raise DataError(
                f"expected one value of {name} a response, got {len(scores)}", record=sample.prompt, field="segments"
            )
        groups.setdefault(sample.prompt, []).append((RESPONSES[name](sample.judgement), scores[0][1]))
    pairs = [(a, b) for group in groups.values() for a, b in combinations(group, 2) if a[0] != b[0]]
    alike = sum((a[0] > b[0]) == (a[1] > b[1]) and a[1] != b[1] for a, b in pairs)
    return OracleAgreement(step, len(pairs), share(alike, len(pairs)))


def error_claims(component: Mapping[str, Any]) -> Callable[[float], bool]:
    """Whether a raw value of a configured segment scorer says "has error": it is nearer to `negative`."""
    positive, negative = float(component.get("positive", 1.0)), float(component.get("negative", -1.0))
    return lambda value: abs(value - negative) < abs(value - positive)


class MeasureDrift:
    """Measure the agreement of a finished or running FactWorld run's components with the oracle.

    Args:
        run: PPO run directory; gets `drift.json`.
        data: prompt file that the run trained on; None takes the one of its `config.yaml`.
        segmenter: spaCy pipeline that cuts the answers, the one of the run's reward models.
    """

    def __init__(self, run: InputFile, data: InputFile | None = None, segmenter: str = DEFAULT_SEGMENTER) -> None:
        self.directory, self.data, self.segmenter = RunDirectory(run), data, SpacySegmenter(segmenter)

    def run(self) -> dict[str, Any]:
        """Judge every kept sample, write `drift.json` and the errors found (`write_marks`); print drift as a table.

        Raises:
            DataError: no run or no samples here, a sample's prompt is not in the data, or the data is no FactWorld.
        """
        config = self.directory.read_config()
        components = (config.get("reward") or {}).get("components") or {}
        files = sample_files(self.directory)
        if not files:
            folder = self.directory.samples_path(0).parent
            raise DataError("no step_N.jsonl here, expected the samples of a PPO run", file=folder)
        sources = self._sources(self.data or get_field(config, "data"))
        by_component: dict[str, list[OracleAgreement]] = {}
        strange: set[str] = set()
        for step, path in files.items():
            try:
                samples = list(judged_samples(path, sources, self.segmenter))
                names = sorted({name for sample in samples for name in sample.scores})
                for name in names:
                    if name in SEGMENTS:
                        row = segment_agreement(step, name, samples, error_claims(components.get(name) or {}))
                    elif name in RESPONSES:
                        row = pair_agreement(step, name, samples)
                    else:
                        strange.add(name)
                        continue
                    by_component.setdefault(name, []).append(row)
            except DataError as error:
                raise error.at(file=path) from None
        report = {
            "oracle": "factworld",
            "components": {name: [asdict(row) for row in rows] for name, rows in by_component.items()},
            "not_comparable": sorted(strange),
        }
        write_json(self.directory.drift, report)
        write_marks(self.directory, self._marks(sources))
        print(f"{drift_page(report)}\nreport: {self.directory.drift}")
        return report

    def _marks(self, sources: Mapping[str, FactSource]) -> dict[tuple[str, str], list[OracleMark]]:
        """The errors in every kept response to a training prompt, and to a validation prompt whose data is there."""
        kept = [(path, sources) for path in sample_files(self.directory).values()]
        data = self.directory.read_config().get("validation_data")
        if isinstance(data, str) and Path(data).is_file():
            validation = self._sources(data)
            kept += [(path, validation) for path in sample_files(self.directory, "validation_step").values()]
        marks: dict[tuple[str, str], list[OracleMark]] = {}
        for path, known in kept:
            for sample in read_samples(path):
                if sample.id in known and (sample.id, sample.text) not in marks:
                    judgement = judge(known[sample.id], sample.text, self.segmenter)
                    marks[sample.id, sample.text] = oracle_marks(judgement)
        return marks

    def _sources(self, data: str) -> dict[str, FactSource]:
        """The question and facts behind each prompt, by id."""
        sources = {}
        for example in read_examples(data):
            try:
                sources[example.id] = parse_source(example.question, split_passages(example.passages, self.segmenter))
            except DataError as error:
                raise error.at(file=data, record=example.id) from None
        return sources


def oracle_marks(judgement: Judgement) -> list[OracleMark]:
    """The errors of an answer as marks: sub-sentences with a C1 or a C2 error, with the oracle's word for it."""
    return [
        OracleMark(*piece.span, f"{kind} ({category})")
        for piece in judgement.sub_sentences
        for kind, category in ((piece.c1, "C1"), (piece.c2, "C2"))
        if kind is not None
    ]


def judged_samples(path: Path, sources: Mapping[str, FactSource], segmenter: Segmenter) -> Iterator[JudgedSample]:
    """The samples of one step, judged.

    Raises:
        DataError: a record lacks a field, or its prompt is unknown.
    """
    for i, sample in enumerate(read_samples(path)):
        if sample.id not in sources:
            problem = f"no prompt {sample.id!r} in the data; name the run's with data=FILE"
            raise DataError(problem, file=path, record=i, field="id")
        scores: dict[str, list[tuple[Span, float]]] = {}
        for segment in sample.segments:
            scores.setdefault(segment.component, []).append(((segment.start, segment.end), segment.raw))
        yield JudgedSample(sample.id, judge(sources[sample.id], sample.text, segmenter), scores)


def drift_page(report: Mapping[str, Any]) -> str:
    """A report as Markdown for people: every step of every component, then the first step against the last."""
    components = report["components"]
    rows = [{"component": name, **row} for name, rows in components.items() for row in rows]
    lines = [markdown_table(rows, COLUMNS)]
    for name, measured in components.items():
        first, last = measured[0], measured[-1]
        shown = ("agreement", "recall", "false_alarm_rate") if name in SEGMENTS else ("agreement",)
        changes = (f"{key.replace('_', ' ')} {cell(first[key])} → {cell(last[key])}" for key in shown)
        lines.append(f"{name}, step {first['step']} → {last['step']}: {', '.join(changes)}")
    if report["not_comparable"]:
        lines.append(f"not comparable with the oracle: {', '.join(report['not_comparable'])}")
    return "\n".join(lines)
