"""Measuring a trained DIALKI or baseline on dialogues with gold: scores, gates, figures, and wrong answers to read.

The figures are the thesis's 3.3 (gate similarity of the latest turns) and 3.4 (scores by length). Wrong answers are a
seeded sample with dialogue, answer, gold, scores and the class of the error: the thesis analyses 50 answers with EM = 0
(section 3.3.5); what a mistake is beyond its class is for a reader to say.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, get_args

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json, write_jsonl, write_text
from finegrained_rlhf.dialki.data import DialogueReading, shared_task_of
from finegrained_rlhf.dialki.finder import Finder, Found, KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import DialkiBatch, passages_to_search
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.jobs import EvaluateDialki
from finegrained_rlhf.dialki.model.heads import Vectors, gate_similarity
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import Coverage, KnowledgeScore, score_answer, summaries
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.dialogue.records import ROLES, Role
from finegrained_rlhf.report.charts.plots import COLOURS, INK, load_pyplot, row_of_axes, save_figure
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class Gate:
    """How near one turn is to the whole input, in one answered dialogue (thesis, figure 3.3).

    Attributes:
        turn: 1 is the latest turn, the user's.
        role: who speaks.
        answer: σ(u·z) in the passage of the answer.
        searched: its mean over all passages that were searched.
    """

    turn: int
    role: Role
    answer: float
    searched: float


@dataclass(frozen=True)
class Answered:
    """One dialogue's answer and what was measured of it.

    Attributes:
        found: the answer.
        score: against the gold.
        gates: of the latest turns, newest first; none where the model has no gates.
    """

    found: Found
    score: KnowledgeScore
    gates: tuple[Gate, ...]

    def to_json(self, example: DialogueExample) -> dict[str, Any]:
        """One JSON object: the answer, the gold and the scores."""
        gold = [{**asdict(known), "text": example.text_of(known)} for known in example.gold]
        score = self.score
        return {
            **self.found.to_json(example),
            "gold": gold,
            **({"references": list(example.references)} if example.references else {}),
            "exact_match": score.exact,
            "f1": round(score.f1, 6),
            "passage_correct": score.passage,
        }


def answered(finder: Finder[Any], items: Sequence[Any], turns: int = 4) -> list[Answered]:
    """Answer a batch of dialogues and measure the answers.

    Args:
        finder: trained. Only one DIALKI that reads whole passages has gates.
        items: dialogues with gold, as the finder's encoder made them.
        turns: latest turns whose gates are kept.
    """
    if isinstance(finder, KnowledgeFinder) and finder.has_gates:
        limit = finder.model.config.search.max_passages
        answers, vectors, batch = finder.read([passages_to_search(item, limit) for item in items])
        gates = _gates(items, answers, vectors, batch, turns)
    else:
        answers, gates = finder.answer(items), [()] * len(items)
    return [
        Answered(one, score_answer(item.record, one.knowledge.passage, one.text), its)
        for item, one, its in zip(items, answers, gates, strict=True)
    ]


def _gates(
    items: Sequence[EncodedExample], answers: Sequence[Found], vectors: Vectors, batch: DialkiBatch, turns: int
) -> list[tuple[Gate, ...]]:
    """The gates of each dialogue's latest turns."""
    values, owners = gate_similarity(vectors).cpu(), batch.owners.cpu()
    gates = []
    for n, (item, one) in enumerate(zip(items, answers, strict=True)):
        rows = values[owners == n]  # passages in the order in which they were searched
        of_answer, mean = rows[one.searched.index(one.knowledge.passage)].tolist(), rows.mean(dim=0).tolist()
        kept = range(min(turns, len(item.roles)))
        gates.append(tuple(Gate(t + 1, item.roles[t], of_answer[t], mean[t]) for t in kept))
    return gates


def gate_summary(answers: Sequence[Answered]) -> list[dict[str, Any]]:
    """Means over the dialogues for each of the latest turns and each role that speaks there.

    Returns:
        Rows `turn`, `role`, `examples`, `similarity` (in the passage of the answer), its `standard_error` (None of a
        single dialogue), `searched` (mean over all passages searched); by turn, users first.
    """
    groups: dict[tuple[int, Role], list[Gate]] = {}
    for gate in (gate for one in answers for gate in one.gates):
        groups.setdefault((gate.turn, gate.role), []).append(gate)
    rows = []
    for turn, role in sorted(groups, key=lambda key: (key[0], ROLES.index(key[1]))):
        members = groups[turn, role]
        values = [gate.answer for gate in members]
        rows.append(
            {
                "turn": turn,
                "role": role,
                "examples": len(members),
                "similarity": fmean(values),
                "standard_error": stdev(values) / len(values) ** 0.5 if len(values) > 1 else None,
                "searched": fmean(gate.searched for gate in members),
            }
        )
    return rows


KnowledgeError = Literal["wrong_passage", "wrong_span", "overlapping"]
"""The passage holds no gold; it does, and no span of the answer is gold; some are."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|])")
_MEANING: dict[str, str] = {
    "wrong_passage": "the passage holds no gold",
    "wrong_span": "the passage holds gold, and no span of the answer is part of it",
    "overlapping": "some spans are gold: the answer says too much or too little",
}


def knowledge_error(example: DialogueExample, answer: Answered) -> KnowledgeError | None:
    """What is wrong with an answer; None where it matches a reference exactly."""
    if answer.score.exact:
        return None
    chosen = answer.found.knowledge
    gold = [known for known in example.gold if known.passage == chosen.passage]
    if not gold:
        return "wrong_passage"
    touched = any(known.begin <= chosen.end and chosen.begin <= known.end for known in gold)
    return "overlapping" if touched else "wrong_span"


def write_errors(
    path: str | Path, examples: Sequence[DialogueExample], answers: Sequence[Answered], sample: int, seed: int
) -> dict[str, Any]:
    """Draw wrong answers, and write them as JSON lines and, under the same name with `.md`, as a page.

    Every wrong answer is equally likely; those drawn are written in the order of the dialogues.

    Args:
        path: of the JSON lines.
        examples: what was answered, with gold.
        answers: to each.
        sample: how many to draw; all where there are fewer.
        seed: of the draw.

    Returns:
        `answers`, `wrong`, `sampled`, and `classes`: wrong answers of each class, drawn or not.
    """
    kinds = [knowledge_error(example, one) for example, one in zip(examples, answers, strict=True)]
    wrong = [number for number, kind in enumerate(kinds) if kind is not None]
    drawn = sorted(random.Random(seed).sample(wrong, min(sample, len(wrong))))
    counts = Counter(kinds[number] for number in wrong)
    result = {
        "answers": len(answers),
        "wrong": len(wrong),
        "sampled": len(drawn),
        "classes": {kind: counts[kind] for kind in get_args(KnowledgeError)},
    }
    rows = [_row(examples[number], answers[number], str(kinds[number])) for number in drawn]
    write_jsonl(path, rows)
    write_text(Path(path).with_suffix(".md"), _page(rows, result, seed))
    return result


def _row(example: DialogueExample, answer: Answered, kind: str) -> dict[str, Any]:
    turns = [{"role": turn.role, "text": turn.text} for turn in example.turns]
    gold = [{"title": example.passages[known.passage].title} for known in example.gold]
    row = answer.to_json(example)
    known = [{**named, **title} for named, title in zip(row.pop("gold"), gold, strict=True)]
    return {"id": row.pop("id"), "error": kind, "turns": turns, "gold": known, **row}


def _page(rows: Sequence[dict[str, Any]], result: dict[str, Any], seed: int) -> str:
    counts = [{"class": kind, "what": _MEANING[kind], "answers": n} for kind, n in result["classes"].items()]
    drawn = f"{result['sampled']} of {result['wrong']} wrong answers, drawn with seed {seed}"
    return "\n\n".join(
        [
            "# Wrong answers",
            f"{drawn}; {result['answers']} dialogues were answered. The table counts all wrong answers.",
            markdown_table(counts, ["class", "what", "answers"]).strip(),
            *(_entry(row) for row in rows),
        ]
    ) + "\n"  # fmt: skip


def _entry(row: dict[str, Any]) -> str:
    """One wrong answer: the dialogue, what was found and what should have been, each under its title."""
    lines = [f"- {turn['role']}: {_plain(turn['text'])}" for turn in row["turns"]]
    scores = (
        f"F1 {row['f1']:.3f}; probability of the passage {row['probability']:.3f}, of the first span "
        f"{row['begin_probability']:.3f}, of the last {row['end_probability']:.3f}; score {row['score']:.3f}"
    )
    answer = f"**found** in {_place_of(row)}: {_plain(row['text'])}"
    gold = [f"**gold** in {_place_of(known)}: {_plain(known['text'])}" for known in row["gold"]]
    gold += [f"**compared with**: {_plain(text)}" for text in row.get("references", ())]
    return "\n\n".join([f"## {_plain(row['id'])}: {row['error']}", "\n".join(lines), answer, *gold, scores])


def _place_of(known: dict[str, Any]) -> str:
    spans = f"span {known['begin']}" if known["begin"] == known["end"] else f"spans {known['begin']}–{known['end']}"
    return f"passage {known['passage']} ({_plain(known['title']) or 'no title'}), {spans}"


def _plain(text: str) -> str:
    """A text on one line that Markdown shows as it stands."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


_ROLES = {"user": COLOURS[0], "agent": COLOURS[1]}
_SCORES = {"exact_match": ("exact match", COLOURS[0]), "f1": ("F1", COLOURS[5])}
_PANELS = {
    "context": ("By length of the dialogue", "turns before the last one"),
    "document": ("By length of the document", "tokens of the document"),
}
_SIZES = ("short", "medium", "long")


def draw_gates(rows: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    """A bar for each of the latest turns and each role that speaks there: σ(u·z), with its standard error.

    Args:
        rows: of `gate_summary`.
        paths: to write, `.svg` or `.png`.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, (axis,) = row_of_axes(pyplot, 1)
    for role, colour in _ROLES.items():
        for number, row in enumerate(row for row in rows if row["role"] == role):
            place, width = _place(row, rows)
            error = row["standard_error"] or 0.0
            label = role if number == 0 else None
            axis.bar(place, row["similarity"], width, yerr=error, color=colour, ecolor=INK, capsize=3, label=label)
            inside = row["similarity"] > 0.15  # at the foot of its bar, where no diamond is taken for it
            foot = 0 if inside else max(row["similarity"] + error, row["searched"])
            _note(axis, f"{row['similarity']:.2f}", place, foot, 6, color="white" if inside else INK)
    places = [_place(row, rows)[0] for row in rows]
    searched = [row["searched"] for row in rows]
    axis.plot(places, searched, "D", markersize=5, markerfacecolor="white", color=INK, label="mean of all passages")
    small = 8 if _alternate(rows) else 6
    for place, row in zip(places, rows, strict=True):
        _note(axis, f"n = {row['examples']:,}", place, 0, -13, fontsize=small)
    turns = sorted({row["turn"] for row in rows})
    axis.set_xticks(turns, [f"$u_{{{turn}}}$" for turn in turns])
    axis.tick_params(axis="x", length=0, pad=16)
    axis.set_ylabel("σ(u · z) in the passage of the answer")
    axis.set_xlabel("turns, the latest first")
    axis.set_title("How near each turn is to the whole input", fontsize=10)
    _finish(pyplot, figure, [axis], paths)


def _alternate(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one role alone speaks in each of the turns."""
    return len(rows) == len({row["turn"] for row in rows})


def _place(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Centre and width of a row's bar: two roles share the place of a turn."""
    roles = [other["role"] for other in rows if other["turn"] == row["turn"]]
    width = 0.8 / len(roles)
    return row["turn"] + width * (roles.index(row["role"]) - (len(roles) - 1) / 2), 0.92 * width


def draw_lengths(
    groups: Mapping[str, Mapping[str, float]], edges: Mapping[str, tuple[int, int]], paths: Sequence[Path]
) -> None:
    """Exact match and F1 of short, medium and long dialogues, and of short, medium and long documents.

    Args:
        groups: of `scores.summaries`.
        edges: last number of turns (`context`) and tokens (`document`) that is short, and that is medium.
        paths: to write, `.svg` or `.png`.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, axes = row_of_axes(pyplot, len(_PANELS))
    for axis, (kind, (title, label)) in zip(axes, _PANELS.items(), strict=True):
        by_size = [groups.get(f"{kind}/{size}") for size in _SIZES]
        for number, (name, (score, colour)) in enumerate(_SCORES.items()):
            there = [(i + 0.4 * (number - 0.5), group[name]) for i, group in enumerate(by_size) if group is not None]
            axis.bar([place for place, _ in there], [value for _, value in there], 0.38, color=colour, label=score)
            for place, value in there:
                _note(axis, f"{value:.2f}", place, value, 3)
        counts = [0 if group is None else int(group["examples"]) for group in by_size]
        names = zip(_SIZES, _ranges(edges[kind]), counts, strict=True)
        axis.set_xticks(range(len(_SIZES)), [f"{size}\n{span}\nn = {count:,}" for size, span, count in names])
        axis.set_xlim(-0.6, len(_SIZES) - 0.4)
        axis.set_xlabel(label)
        axis.set_title(title, fontsize=10)
    axes[0].set_ylabel("mean over the dialogues of the group")
    _finish(pyplot, figure, axes, paths)


def _ranges(edges: tuple[int, int]) -> tuple[str, str, str]:
    """The numbers of each size in words."""
    short, medium = edges
    return f"0–{short:,}", f"{short + 1:,}–{medium:,}", f"over {medium:,}"


def _note(axis: Any, text: str, x: float, y: float, above: int, **look: Any) -> None:
    axis.annotate(text, (x, y), (0, above), textcoords="offset points", ha="center", **look)


def _finish(pyplot: Any, figure: Any, axes: Sequence[Any], paths: Sequence[Path]) -> None:
    """Shares from 0 to 1 on quiet lines, one legend below, and the files."""
    for axis in axes:
        axis.set_ylim(0, 1.1)
        axis.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        axis.grid(axis="y", linewidth=0.5, alpha=0.5)
        axis.set_axisbelow(True)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(handles), frameon=False)
    save_figure(pyplot, figure, *paths)


def evaluate(job: EvaluateDialki) -> None:
    """Answer, measure, write and print as a job says."""
    processes = Processes(job.processes)
    if job.plots:
        load_pyplot("plots=true")  # before the work, not after it
    reading = job.source().read()
    labelled = [example for example in reading.examples if example.gold][: job.limit]
    if not labelled:
        raise DataError("no dialogue names its gold knowledge, so nothing can be scored", file=job.data)
    finder = load_finder(job.checkpoint, processes, job.ensemble, batch_size=job.batch_size)
    if job.score_by is not None:
        config = finder.model.config
        finder.model.config = replace(config, search=replace(config.search, score_by=job.score_by))
    items, cut = finder.encoder.encode(labelled)
    answers = _answers(job, finder, items)
    if processes.is_main:
        Coverage.of(one.found.coverage for one in answers).warn()
        system, models = finder.model.config.system, 1 + len(job.ensemble)
        about = {"system": system, "models": models, "data": _read(reading, cut)}
        _write(job, items, answers, about | _measured(job, items, answers) | _more(job, items, answers))
    processes.barrier()


def _answers(job: EvaluateDialki, finder: Finder[Any], items: Sequence[Any]) -> list[Answered]:
    """The answers to all dialogues, in order, in every process."""
    processes = finder.processes
    share = [items[i] for i in processes.share(len(items))]
    answers: list[Answered] = []
    with ProgressBar("evaluating", len(share), "dialogues", processes.is_main) as bar:
        for start in range(0, len(share), job.batch_size):
            answers += answered(finder, share[start : start + job.batch_size], job.turns)
            bar.update(len(answers) - bar.done)
    return processes.gather_objects(answers)


def _measured(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
    """What `evaluation.json` says of the answers: scores by group, and the gates."""
    groups = summaries(
        [item.record for item in items],
        [one.score for one in answers],
        [item.document_length for item in items],
        job.edges,
    )
    return {
        "groups": groups,
        "searched": Coverage.of(one.found.coverage for one in answers).to_json(),
        "edges": {name: list(edges) for name, edges in job.edges.items()},
        "gate_similarity": gate_summary(answers),
    }


def _more(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered]) -> dict[str, Any]:
    """Write the files that were asked for; what `evaluation.json` says of them."""
    records, results = [item.record for item in items], dict[str, Any]()
    if job.shared_task is not None:
        results["shared_task"] = shared_task_of(job.format)(job.shared_task, [one.found for one in answers], records)
    if job.errors is not None:
        results["errors"] = write_errors(job.errors, records, answers, job.error_sample, job.error_seed)
    return results


def _write(job: EvaluateDialki, items: Sequence[Any], answers: Sequence[Answered], result: Mapping[str, Any]) -> None:
    output = Path(job.output_dir)
    rows = (one.to_json(item.record) for item, one in zip(items, answers, strict=True))
    write_jsonl(output / "answers.jsonl", rows)
    write_json(output / "evaluation.json", result)
    if job.plots and result["gate_similarity"]:
        draw_gates(result["gate_similarity"], [output / f"gates.{kind}" for kind in ("svg", "png")])
    if job.plots:
        draw_lengths(result["groups"], job.edges, [output / f"lengths.{kind}" for kind in ("svg", "png")])
    table = [{"group": name, **values} for name, values in result["groups"].items()]
    print(f"{markdown_table(table, list(table[0]))}-> {output}")


def _read(reading: DialogueReading, cut: InputReport) -> dict[str, Any]:
    """What was read and what did not fit, ready for JSON."""
    unlabelled = sum(not example.gold for example in reading.examples)
    return {"read": reading.report(), "without_gold": unlabelled, "inputs": cut.to_json()}
