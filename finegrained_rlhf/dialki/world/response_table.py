"""Table 3.4 of the thesis on DialogueWorld: how well answers from each kind of knowledge are scored.

Knows the files that `generate_responses.py` writes for each seed. Does not know how they were made.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.core.provenance import commit_of
from finegrained_rlhf.core.tables import markdown_table, spread_table, summarise_rows

COLUMNS = ("bleu", "exact_match", "token_f1", "rouge_lsum")
FOUND = ("knowledge_passage_accuracy", "knowledge_exact_match")
"""How well DIALKI found the knowledge of the answered turns."""
THESIS = (
    ("knowledge found by DIALKI is worth more than the whole document", "span_found", "document", (25.16, 22.84)),
    ("its passage beside the span adds to it", "span_and_passage_found", "span_found", (25.84, 25.16)),
)
"""What table 3.4 says: the claim, the system with the higher BLEU, the one with the lower, and both of the thesis's."""


@dataclass(frozen=True)
class ResponseTable:
    """Collects the scores of several seeds into a results file and its page.

    Attributes:
        directory: of the experiment; each seed has `seed_N/` below it, with `answers/SYSTEM.metrics.json`.
        systems: names of the files; what ends in `_found` had its knowledge found by DIALKI.
        output: the results file; the page gets the same name with `.md`.
        command: what was run.
        seeds: which of them.
    """

    directory: str
    systems: Sequence[str]
    output: str
    command: str
    seeds: Sequence[int] | None = None

    def run(self) -> dict[str, Any]:
        """Write both files and print the page.

        Raises:
            ConfigError: no seeds are given.
            DataError: a file is missing, or holds no scores.
        """
        if not self.seeds:
            raise ConfigError("a table is made of several seeds: seeds=[0,1,2], or collect=null to make none")
        rows = [self._row(system, seed) for system in self.systems for seed in self.seeds]
        result = {
            "command": self.command,
            "commit": commit_of(Path(__file__).parent),
            "seeds": list(self.seeds),
            "bleu_signature": rows[0].pop("bleu_signature"),
            "rows": [{key: value for key, value in row.items() if key != "bleu_signature"} for row in rows],
        }
        result["summary"] = {system: self._summary(result["rows"], system) for system in self.systems}
        result["thesis"] = compared(result["rows"])
        write_json(self.output, result)
        page = response_page(result)
        write_text(Path(self.output).with_suffix(".md"), page)
        print(f"\n{page}\nresults: {self.output}")
        return result

    def _row(self, system: str, seed: int) -> dict[str, Any]:
        path = Path(self.directory) / f"seed_{seed}" / "answers" / f"{system}.metrics.json"
        found = read_json(path)
        names = (*COLUMNS, *(FOUND if system.endswith("_found") else ()))
        missing = [name for name in (*names, "bleu_signature", "scored") if name not in found]
        if missing:
            raise DataError("is not among the scores", file=path, field=missing[0])
        scores = {name: float(found[name]) for name in names}
        return {
            "system": system,
            "seed": seed,
            "answers": found["scored"],
            **scores,
            "bleu_signature": found["bleu_signature"],
        }

    @staticmethod
    def _summary(rows: Sequence[Mapping[str, Any]], system: str) -> dict[str, dict[str, float]]:
        mine = [row for row in rows if row["system"] == system]
        return summarise_rows(mine, [name for name in (*COLUMNS, *FOUND) if name in mine[0]])


def compared(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each claim of the thesis whose systems are here: the mean BLEU of both, and in how many seeds it holds."""
    claims = []
    for text, better, worse, thesis in THESIS:
        of = {
            system: {row["seed"]: row["bleu"] for row in rows if row["system"] == system} for system in (better, worse)
        }
        if not of[better] or not of[worse]:
            continue
        claims.append(
            {
                "claim": text,
                "better": better,
                "worse": worse,
                "thesis": list(thesis),
                "means": [statistics.fmean(of[system].values()) for system in (better, worse)],
                "holds_in": sum(value > of[worse][seed] for seed, value in of[better].items()),
                "seeds": len(of[better]),
            }
        )
    return claims


def response_page(result: Mapping[str, Any]) -> str:
    """The page of a results file."""
    claims = [
        {
            "the thesis says": row["claim"],
            "thesis": f"{row['thesis'][0]:.2f} against {row['thesis'][1]:.2f}",
            "DialogueWorld": f"{row['means'][0]:.2f} against {row['means'][1]:.2f}",
            "systems": f"{row['better']}, {row['worse']}",
            "holds in": f"{row['holds_in']} of {row['seeds']} seeds",
        }
        for row in result["thesis"]
    ]
    parts = [
        "# DialogueWorld: answers from knowledge (table 3.4)",
        "Generated from the JSON file of the same name; do not edit. Greedy answers of a T5, which learnt from the "
        "labels' knowledge, to held-out dialogues. A system is named for what the T5 reads beside the dialogue: "
        "nothing, the whole document, the span, its passage, or both; `_found` by DIALKI, else the label's. `bleu`: "
        f"corpus BLEU, 0 to 100, `{result['bleu_signature']}`; the others are means in 0 to 1, after SQuAD's "
        "normalisation. `knowledge_…`: how well DIALKI found the knowledge.",
        f"`{result['command']}` at commit `{result['commit']}`, seeds {', '.join(map(str, result['seeds']))}",
        "## Mean ± standard deviation over seeds",
        spread_table(result["summary"], "system", (*COLUMNS, *FOUND)).strip(),
    ]
    if claims:
        parts += ["## The thesis and DialogueWorld", markdown_table(claims, list(claims[0])).strip()]
    columns = ["system", "seed", "answers", *COLUMNS, *FOUND]
    parts += ["## Every run", markdown_table(result["rows"], columns).strip()]
    return "\n\n".join(parts) + "\n"
