"""The demo on real questions: a pretrained policy before and after one round of learning from its own best samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from finegrained_lab.experiments.gate import gate_page, judge_gate
from finegrained_lab.experiments.qa_feedback.distilled.pool import MEASURES, TOTAL, pool_of, totals_of_known
from finegrained_lab.experiments.qa_feedback.distilled.systems import (
    differences,
    differences_page,
    means,
    sampled_systems,
    trivial_systems,
)
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_text
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, Seed
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.report.elements.html import Html, el
from finegrained_rlhf.report.elements.page import offline_document
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import exported_step
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from reward_models.bottleneck.model import Bottleneck

BEFORE, AFTER = "before", "after"
CHOSE = "the reward itself, by which the best are chosen; `sft` is the mean of the samples"
_COLUMNS = (TOTAL, *MEASURES)
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
h2{font-size:1.05rem;margin:2rem 0 .5rem;overflow-wrap:anywhere}
.pair{display:grid;gap:.75rem;grid-template-columns:1fr 1fr}
@media(max-width:640px){.pair{grid-template-columns:1fr}}
.pair>div,.gold{border:1px solid #8886;border-radius:6px;padding:.6rem;overflow-wrap:anywhere}
b{display:block;font-size:.85rem}.gold{margin-top:.75rem}
mark{color:inherit;background:none;border-bottom:3px solid transparent}.note{opacity:.8}
"""


@dataclass(frozen=True)
class DemoRealTable(Results):
    """A policy before and after a round of expert iteration, beside gold and copies, and a page of its answers.

    Attributes:
        before: outputs of the policy as it was, several samples of each held-out question.
        after: of the policy that was taught, of the same questions.
        reward_model: the bottleneck that chose what was taught, or its run; it has seen none of the questions.
        answers: HTML page of answers before and after, coloured by the reward of each piece.
        shown: questions on that page.
        seed: of the pools.
        distilled: the run that taught the policy of `after`, whose exported step the page names.
    """

    title: ClassVar[str] = "Real questions: a pretrained policy learns from its own best answers"
    about: ClassVar[str] = (
        "SmolLM2-135M-Instruct answers real questions; a small reward on MiniLM, which learnt from people's marks, "
        "chooses the best of its samples, and it is trained on these for one round. Here are held-out questions. "
        "`before`, `after`: means over the samples of a question; `…, best of n`: the sample that the reward likes "
        "best. `gold` is the human answer, `cut_gold` its first 30 words, `cut_lead` the first 35 words of the first "
        "passage, `best_sentence` the passage sentence nearest to the question. `bottleneck` is the reward itself, "
        "which is no judge of what was trained on it; the other columns need none (`measures.md`)."
    )

    before: InputFile
    after: InputFile
    reward_model: ModelName
    answers: OutputFile
    shown: int = 20
    seed: Seed = 0
    distilled: InputFile | None = None

    def run(self) -> dict[str, Any]:
        """Measure, write results, page and answers.

        Raises:
            DataError: the two files have other questions.
            ModelError: there is no such reward model.
        """
        from reward_models.bottleneck.model import load_bottleneck

        model = load_bottleneck(str(self.reward_model))
        records = {name: read_outputs(path) for name, path in ((BEFORE, self.before), (AFTER, self.after))}
        if [one.id for one in records[BEFORE]] != [one.id for one in records[AFTER]]:
            raise DataError("expected answers to the same questions in the same order", file=self.after)
        pools = {name: pool_of(model, of, self.seed) for name, of in records.items()}
        sampled, trivial = sampled_systems(pools, _COLUMNS), trivial_systems({TOTAL: model}, pools[BEFORE])
        write_text(Path(self.answers), answers_page(model, records[BEFORE][: self.shown], records[AFTER][: self.shown]))
        return self.write(
            {
                **self.made_by(),
                "questions": len(records[BEFORE]),
                "samples": min(len(one.outputs) for of in records.values() for one in of),
                "exported": self._exported(),
                "rows": [{"system": name, **means(of, _COLUMNS)} for name, of in (sampled | trivial).items()],
                "differences": [
                    {"system": name, **differences(of, sampled[BEFORE], _COLUMNS)}
                    for name, of in sampled.items()
                    if name != BEFORE
                ],
                "gate": judge_gate(totals_of_known(model, pools[BEFORE], TOTAL), None, CHOSE),
            }
        )

    def _exported(self) -> dict[str, int] | None:
        """The step of the policy that was taught, and of how many; None where its run is not named.

        Raises:
            DataError: the run has exported none.
        """
        if self.distilled is None:
            return None
        run = RunDirectory(Path(self.distilled))
        step = exported_step(run.final("policy"))
        if step is None:
            raise DataError("expected a run that exported a policy", file=self.distilled)
        return {"step": step, "of": int(read_json(run.path / "run.json")["total_steps"])}

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows, the differences from before, and whether the reward counts."""
        return (
            f"{self.opening(result, self.title, self.about)}\n\n{result['questions']} held-out questions, "
            f"{result['samples']} samples of each. {exported_words(result)}\n\n"
            f"{markdown_table(result['rows'], ['system', *_COLUMNS])}\n"
            "## Difference from before, with 95% intervals over questions\n\n"
            f"{differences_page(result['differences'], _COLUMNS)}\n{gate_page(result['gate'])}"
        )


def exported_words(result: Mapping[str, Any]) -> str:
    """A sentence on which step of the round `after` is.

    Results of before do not name it. There validation on four prompts chose between the first weights and the last,
    and the first are the policy of `before`, which with the same seed writes the same samples.
    """
    unknown = "Which step `after` is was not kept."
    if "exported" in result:
        if not (exported := result["exported"]):
            return unknown
        last = "the last" if exported["step"] == exported["of"] else "not the last"
        return f"`after` is the policy of step {exported['step']} of {exported['of']}, {last}."
    rows = {row["system"]: row for row in result["rows"]}
    steps = ((result.get("configuration") or {}).get("settings") or {}).get("steps")
    if steps is None or all(rows[AFTER][column] == rows[BEFORE][column] for column in _COLUMNS):
        return unknown
    return (
        f"Four validation prompts chose between the first weights and the last ones, those of step {steps}; `after` "
        "does not answer as `before` does, so it is the last ones. A run made now exports its last weights without "
        "validation."
    )


def answers_page(model: Bottleneck, before: Sequence[OutputRecord], after: Sequence[OutputRecord]) -> str:
    """A page, one file: each question with an answer before and after, every piece coloured by its relevance.

    Green earns, red costs; what a sentence says that no passage says is underlined in red by the reward of factuality.
    """
    parts: list[Any] = [
        el("h1", "Answers before and after"),
        el("p", "The first sample of each. The ground of a piece is the reward of its relevance: green earns, red "
           "costs. A sentence that the reward of factuality calls false is underlined. Neither is a judge.",
           class_="note"),
    ]  # fmt: skip
    for old, new in zip(before, after, strict=True):
        pair = [
            el("div", el("b", label), Html(_coloured(model, record, record.outputs[0])))
            for label, record in ((BEFORE, old), (AFTER, new))
        ]
        gold = el("div", el("b", "human answer"), old.references[0], class_="gold")
        parts += [el("h2", old.question), el("div", *pair, class_="pair"), gold]
    return str(offline_document("Answers before and after", _STYLE, "", [el("main", *parts)]))


def _coloured(model: Bottleneck, record: OutputRecord, answer: str) -> str:
    source = model.source(record.question, record.passages)
    spans, sentences = model.cut("relevance", answer), model.cut("factuality", answer)
    worth = [1 - 2 * error for error in _errors(model, "relevance", source, answer, spans)]
    wrong = _errors(model, "factuality", source, answer, sentences)
    false = [span for span, p in zip(sentences, wrong, strict=True) if p > 0.5]
    shown, place = [], 0
    for (start, end), value in zip(spans, worth, strict=True):
        line = ";border-color:#d33" if any(a <= start < b for a, b in false) else ""
        colour = f"rgba({'30,160,80' if value > 0 else '210,60,60'},{abs(value) * 0.55:.2f})"
        shown += [escape(answer[place:start]), f'<mark style="background:{colour}{line}" title="{value:+.2f}">']
        shown += [escape(answer[start:end]), "</mark>"]
        place = end
    return "".join(shown) + escape(answer[place:])


def _errors(
    model: Bottleneck, component: str, source: Any, answer: str, spans: Sequence[tuple[int, int]]
) -> list[float]:
    """Probabilities of an error in each span; none of an answer without words."""
    found: list[float] = list(model.errors(component, source, [answer[a:b] for a, b in spans])) if spans else []
    return found
