"""Write the page that says what has been shown where, from the committed results files and the experiments' headers.

Example: python docs/site/proven.py        (writes docs/proven.md, and a table and the lines of README.md)

Knows results files, the ledger of statements (`docs/site/ledger.yaml`), the pipelines that make tables, and experiments
that say `# paper: not run here`. A table that is not committed does not count, nor does one that no checkout gives.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import yaml

from finegrained_lab.experiments.ledger import VERDICTS, Asked, Headline, count_verdicts, read_ledger, read_outside
from finegrained_lab.experiments.results_table import Evidence, JudgedBy, Subjects, made_of_changed_files
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.launch.configurations import conf_directories
from finegrained_rlhf.text.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs/proven.md", ROOT / "README.md"
LEDGER, RESULTS = ROOT / "docs/site/ledger.yaml", ROOT / "docs/results"
MARKERS = ("<!-- proven: written by docs/site/proven.py -->", "<!-- /proven -->")
BEDS_MARKERS = ("<!-- beds: written by docs/site/proven.py -->", "<!-- /beds -->")
_OF_THE_THESIS = ("sft", "sft_full", "preference_rlhf", None, "fine_grained_rlhf")
BEDS = (
    ("FactWorld: mean of three error rates", "factworld/systems", "mean_error", _OF_THE_THESIS),
    ("the same, open questions, free gold answers", "factworld/free_form", "mean_error", _OF_THE_THESIS),
    (
        "ToneWorld: most toxic of four continuations, one β",
        "detox/tone_world",
        "average_max",
        ("base", None, None, "holistic", "fine_grained_as_holistic"),
    ),
    (
        "TalkWorld: errors a conversation, where luck is loud",
        "turns/talk_world",
        "errors",
        ("demonstrations", None, None, "outcome", "dense"),
    ),
    (
        "InscitWorld: share of what is said that is false",
        "inscit/world_ppo",
        "true",
        ("dpr_fid", None, None, "ppo_whole", "ppo_dense"),
    ),
)
"""What the README's first screen shows: a test bed and what its oracle counts there, the table, its column, and the
systems of `SYSTEMS` as the table names them (in a table of several settings, how the name begins)."""
SYSTEMS = ("before RL", "SFT-Full", "preference reward", "holistic reward", "fine-grained reward")
NAMES = {
    "canard": "CONQRR",
    "conqrr": "CONQRR",
    "detox": "detoxification",
    "annotation": "annotation",
    "dialki": "DIALKI",
    "factworld": "fine-grained RLHF",
    "inscit": "INSCIT",
    "personalization": "personalization",
    "qa_feedback": "fine-grained RLHF",
    "turns": "answers in several turns",
}
"""Folder of results → the system that they are of."""
GPUS = ("H100", "H200")
_NOT_RUN = "# paper: not run here"


@dataclass(frozen=True)
class Shown:
    """One committed table.

    Attributes:
        system: that it is of.
        page: from `docs/`.
        title: of the page.
        evidence: what its numbers are evidence of.
        seeds: of them; none where nothing was drawn.
        hardware: that it was made on.
        judged_by: what says how good its rows are.
        subjects: what its rows are of.
        refused: no checkout gives it: it was made of files that differ from its commit.
        failed: why its learned judge does not count, so that none of its statements is evidence; empty where it does,
            or where no learned model judges.
    """

    system: str
    page: str
    title: str
    evidence: Evidence
    seeds: tuple[int, ...]
    hardware: str
    judged_by: JudgedBy
    subjects: Subjects
    refused: bool
    failed: tuple[str, ...]

    @property
    def judge(self) -> str:
        """Who judges, and whether that counts, as the page shows it."""
        return f"{self.judged_by}: does not count" if self.failed else self.judged_by


def tables() -> list[Shown]:
    """Every committed table, by folder and name."""
    shown = []
    for path in sorted((ROOT / "docs/results").glob("*/*.json")):
        name = path.relative_to(ROOT / "docs/results").with_suffix("").as_posix()
        page = path.with_suffix(".md")
        if not page.is_file():
            continue
        result = read_json(path)
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        system, seeds = NAMES[name.split("/")[0]], tuple(result.get("seeds", ()))
        judged_by: JudgedBy = _declared(name, result, "judged_by", "oracle")
        shown.append(
            Shown(
                system,
                f"results/{name}.md",
                title,
                _declared(name, result, "evidence", "generated world"),
                seeds,
                _hardware(result),
                judged_by,
                _declared(name, result, "subjects", "models"),
                made_of_changed_files(result),
                _failed(judged_by, result),
            )
        )
    return shown


def _declared(name: str, result: dict[str, Any], key: str, default: str) -> Any:
    """What a table is evidence of, and what judged it: as its file says; of an older file as its pipeline does now."""
    pipeline = ROOT / "lab/finegrained_lab/conf/pipeline" / f"{name}.yaml"
    collect = yaml.safe_load(pipeline.read_text(encoding="utf-8"))["collect"] if pipeline.is_file() else {}
    return result.get(key) or collect.get(key, default)


def _failed(judged_by: JudgedBy, result: dict[str, Any]) -> tuple[str, ...]:
    """Why a table's judge does not count (`finegrained_lab.experiments.gate`); empty where it does."""
    if "gate" in result:  # also of a table whose other columns need no judge
        return () if result["gate"]["passed"] else tuple(result["gate"]["reasons"])
    if judged_by == "learned model":
        return ("its judge was put to no stress test, nor shown people's answers and a cut copy",)
    return ()


def _hardware(result: dict[str, Any]) -> str:
    """The machine in a few words; results older than the keeping of hardware were all made on a CPU."""
    machine = result.get("hardware")
    if not machine:
        return "CPU"
    return ", ".join(machine["gpus"]) or f"CPU, {machine['cores']} cores"


def paper_experiments() -> Iterator[tuple[str, str]]:
    """Experiments at the size of the papers that nobody ran here: name, and what the file says of itself."""
    places = [directory / "experiment" for directory in conf_directories()]
    paths = {
        path.relative_to(place).with_suffix("").as_posix(): path for place in places for path in place.rglob("*.yaml")
    }
    for name, path in sorted(paths.items()):
        lines = path.read_text(encoding="utf-8").splitlines()
        if _NOT_RUN in lines:
            header = takewhile(lambda line: line.startswith("#"), lines[lines.index(_NOT_RUN) + 1 :])
            text = " ".join(line.removeprefix("# ") for line in header)
            yield name, re.split(r"[.;:] ", text, maxsplit=1)[0].rstrip(".")


def gpu_results() -> dict[str, str]:
    """Committed figures that were measured on a GPU: file → the GPU, as the file's own machine record names it."""
    gpus = {}
    for path in sorted((ROOT / "benchmarks/results").rglob("*.json")):
        if names := sorted(set(_gpus(read_json(path)))):
            gpus[path.relative_to(ROOT).as_posix()] = ", ".join(names)
    return gpus


def _gpus(value: Any) -> Iterator[str]:
    """Names under `gpu` and `gpus` anywhere in a results file; a number counts GPUs that were only reckoned with."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("gpu", "gpus"):
                yield from (name for name in (item if isinstance(item, list) else [item]) if isinstance(name, str))
            else:
                yield from _gpus(item)
    elif isinstance(value, list):
        for item in value:
            yield from _gpus(item)


def ledger_lines() -> list[str]:
    """Four lines: what statements came to, by models and by scripts; worlds; real data; what was not run."""
    shown = [table for table in tables() if not table.refused]
    scripted = {table.page for table in shown if table.subjects != "models"}
    headlines = read_ledger(LEDGER, RESULTS)
    of_scripts = [headline for headline in headlines if _of_scripts(headline, scripted)]
    of_models = [headline for headline in headlines if headline not in of_scripts]
    worlds = [table for table in shown if table.evidence == "generated world"]
    real = [table for table in shown if table.evidence != "generated world"]
    pretrained = [table for table in real if table.evidence == "real data and pretrained weights"]
    failed = sum(bool(table.failed) for table in real)
    measured = sorted(set(gpu_results().values()))
    gpu = f"speed was measured on {_listed(measured)}" if measured else "nothing was run on a GPU"
    return [
        f"**Statements of the thesis**, each once: {_counted(of_models)}. Of the papers on personalization, by scripts "
        f"that stand in for a language model: {_counted(of_scripts)}.",
        f"**On generated worlds**, whose oracle knows every error: {len(worlds)} tables of "
        f"{_listed(sorted({table.system for table in worlds}))}.",
        f"**On real data**: {len(real)} tables, {len(pretrained)} of them with pretrained weights; the judges of "
        f"{failed} do not count: these are no evidence.",
        f"**Not run**: the papers' own configurations ({len(list(paper_experiments()))} experiments); {gpu}.",
    ]


def _of_scripts(headline: Headline, scripted: set[str]) -> bool:
    pages = {f"results/{one.table}.md" for statement in headline.statements for one in statement.asked}
    return bool(pages) and pages <= scripted


def _counted(headlines: list[Headline]) -> str:
    counts = count_verdicts(headlines)
    return f"{sum(counts.values())}, of which " + ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]
    )


def ledger_parts() -> list[str]:
    """The ledger: a row a headline, then every statement with what each table says of it."""
    headlines = read_ledger(LEDGER, RESULTS)
    rows = [
        {
            "work": headline.work,
            "it says": headline.says,
            **{verdict: str(headline.counts[verdict] or "–") for verdict in VERDICTS[:-1]},
            "not run": headline.not_run or "–",
        }
        for headline in headlines
    ]
    statements = [
        {
            "work": headline.work,
            "statement": statement.says,
            "source": statement.source,
            "verdict": statement.verdict,
            "asked on": "; ".join(map(_asked, statement.asked)),
        }
        for headline in headlines
        for statement in headline.statements
    ]
    outside = [f"- [{one.table}](results/{one.table}.md): {one.why}." for one in read_outside(LEDGER, RESULTS)]
    return [
        "## By headline\n\nNumbers of statements. Reproduced: it holds in every seed, of three or more, of every table "
        "that can answer it. Contradicted: in none of them. Undecided: in some, in too few seeds, or the tables do not "
        "agree. Cannot be asked here: no table can answer it, for a reason that stands beside it below. Without any "
        "effect three seeds would call a statement reproduced in one case of eight, and contradicted in another; most "
        "rest on three, and no size of a difference is asked for. In the last "
        f"column what of it was not run at all.\n\n{markdown_table(rows, list(rows[0])).strip()}",
        "## By statement\n\nBehind each table in how many seeds the statement holds, and the two sides, means over "
        "seeds; of several comparisons in how many all hold, and the sides of the one that holds in the fewest."
        f"\n\n{markdown_table(statements, list(statements[0])).strip()}",
        "### In no statement\n\n" + "\n".join(outside),
    ]


def _asked(one: Asked) -> str:
    sides = " against ".join("–" if mean is None else f"{mean:.3f}" for mean in one.means)
    answer = f"cannot: {one.why}" if one.why else f"{one.holds_in} of {one.seeds}, {sides}"
    caveat = f" (but {one.caveat})" if one.caveat else ""
    return f"[{one.table}](results/{one.table}.md): {answer}{caveat}"


def beds_table() -> str:
    """Policies before and after RL on the worlds of `BEDS`, by what an oracle counts: the README's first table."""
    rows = []
    for bed, name, column, systems in BEDS:
        summary = read_json(RESULTS / f"{name}.json")["summary"]
        errors = {shown: _error(summary, system, column) for shown, system in zip(SYSTEMS, systems, strict=True)}
        rows.append({"errors, by an oracle": f"[{bed}](docs/results/{name}.md)", **errors})
    return markdown_table(rows, list(rows[0])).strip()


def _error(summary: Mapping[str, Any], system: str | None, column: str) -> str:
    """The mean over seeds of a system's column, or of what it lacks where the column counts what is true."""
    if system is None:
        return "–"
    value = next(of[column] for name, of in summary.items() if name.split(" (")[0] == system)
    mean: float = value["mean"] if isinstance(value, Mapping) else value[0]
    return f"{1 - mean if column == 'true' else mean:.3f}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def by_machine(shown: list[Shown]) -> list[dict[str, str]]:
    """For each system and kind of evidence, how many tables were made on a CPU, on an H100, on an H200."""
    rows = []
    papers = [NAMES[name.split("/")[0]] for name, _ in paper_experiments()]
    for system in dict.fromkeys(NAMES.values()):
        for evidence in get_args(Evidence):
            of = [table.hardware for table in shown if (table.system, table.evidence) == (system, evidence)]
            counts = {gpu: sum(gpu in hardware for hardware in of) for gpu in GPUS}
            counts = {"CPU": sum(hardware.startswith("CPU") for hardware in of), **counts}
            if of:
                numbers = {machine: str(count) if count else "–" for machine, count in counts.items()}
                rows.append({"system": system, "evidence": evidence, **numbers})
        if system in papers:
            none = dict.fromkeys(("CPU", *GPUS), "–")
            rows.append({"system": system, "evidence": "configuration of the paper", **none})
    return rows


INTRODUCTION = (
    "Written by `python docs/site/proven.py` from the committed results files; do not edit. A generated world proves "
    "that a method and its code work; it proves nothing about language. Real data prove it for these data, at the size "
    "that was run. Each page says what was chosen on what, and prints every row. `judged by`: what says how good the "
    "rows are, and whether that counts where it is a learned model. `rows of`: models, or scripts that stand in for "
    "them, all but one step in some. Side by side on every test bed: [dense against holistic]"
    "(dense_against_holistic.md) and [fine-grained against preference](fine_grained_against_preference.md) reward."
)


def proven_page() -> str:
    """The page."""
    shown = tables()
    machines = by_machine([table for table in shown if not table.refused])
    parts = [
        "# What has been proven where",
        INTRODUCTION,
        "\n".join(f"- {line}" for line in ledger_lines()),
        *ledger_parts(),
        f"## Tables\n\nBy the machine that they were made on:\n\n{markdown_table(machines, list(machines[0])).strip()}",
    ]
    for evidence in get_args(Evidence):
        rows = [
            {
                "system": table.system,
                "table": f"[{table.title}]({table.page})",
                "seeds": ", ".join(map(str, table.seeds)) or "–",
                "judged by": table.judge,
                "rows of": table.subjects,
                "made on": table.hardware,
            }
            for table in shown
            if table.evidence == evidence and not table.refused
        ]
        body = markdown_table(rows, list(rows[0])).strip() if rows else "Nothing yet."
        parts.append(f"## {evidence[0].upper()}{evidence[1:]}\n\n{body}")
    failed = [f"- [{table.title}]({table.page}): {'; '.join(table.failed)}." for table in shown if table.failed]
    parts.append(
        "## Not evidence\n\nA table whose rows are judged by a learned model counts only if that judge passes the "
        "stress test on its questions and gives people's answers no less than SFT's, and SFT's more than the first "
        "words of a passage, cut off. No statement of these tables is counted above:\n\n"
        + ("\n".join(failed) or "None.")
    )
    refused = [f"- [{table.title}]({table.page})." for table in shown if table.refused]
    if refused:
        parts.append(
            "## Refused\n\nMade of files that differ from the commit that they name, so that no checkout gives them; "
            "they are counted nowhere above, and have to be made again:\n\n" + "\n".join(refused)
        )
    paper = [{"experiment": f"`{name}`", "what it is": text} for name, text in paper_experiments()]
    parts.append(
        "## Configuration of the paper, not run here\n\nThe settings are the papers'; data and models are the user's "
        f"to bring, and no number of this project comes from them.\n\n{markdown_table(paper, list(paper[0])).strip()}"
    )
    gpu = gpu_results()
    parts.append(
        "## GPUs\n\n"
        + (
            f"Measured on {_listed(sorted(set(gpu.values())))}: {len(gpu)} files of `benchmarks/results` "
            "([Benchmarks](benchmarks.md#measured-so-far)). These are seconds, memory and equality; which tables were "
            "made on a GPU stands above."
            if gpu
            else "Nothing of this project has been run on a GPU. `python -m benchmarks.gpu out=DIR` measures all that "
            "needs one ([Benchmarks](benchmarks.md))."
        )
    )
    return "\n\n".join(parts) + "\n"


def readme_with_lines() -> str:
    """README.md with the table and the lines between their markers."""
    text = README.read_text(encoding="utf-8")
    lines = "\n".join(f"- {line}" for line in ledger_lines())
    for (begin, end), written in ((MARKERS, lines), (BEDS_MARKERS, beds_table())):
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{written}\n\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(proven_page(), encoding="utf-8")
    README.write_text(readme_with_lines(), encoding="utf-8")
    print(PAGE.relative_to(ROOT), file=sys.stderr)
