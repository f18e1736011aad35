"""DSTC11 track 5 by its own measures: which set of snippets a turn needs.

A system scores every snippet of some entities; a rule makes a set of the scores. The rule is chosen on `dev`, what is
measured is `test`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from finegrained_lab.experiments.compared_table import read_curve
from finegrained_lab.experiments.dialki.lexical import snowball
from finegrained_lab.experiments.dialki.snippet_encoders import Kind, open_scorer, scorer_of
from finegrained_lab.experiments.dialki.snippet_sets import (
    Score,
    by_cosine,
    by_dialki,
    by_words,
    choose_rule,
    first_right,
    score_turns,
)
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.published.dialogues.dstc11_track import (
    Entity,
    EntityMatcher,
    Label,
    Track,
    TrackTurn,
    read_track,
    track_scores,
    write_labels,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, Seed
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

Entities = Literal["matched", "labels"]
COLUMNS = ("selection_exact_match", "selection_precision", "selection_recall", "selection_f1")
FIRST, NEW = "first_right", "f1_new"
DIALKI = "dialki"
TRAINED = (*get_args(Kind), DIALKI)
"""Directories of a seed that a row is made of, where they are."""
_KNOWN = ("one_needed_snippet", "all_of_the_entities")
PUBLISHED = {"the track's baseline": (0.391, 0.789), "the best entry": (0.657, 0.855)}
"""Exact match and F1 on the track's test part, which is not published with labels."""


@dataclass(frozen=True)
class Dstc11TrackTable(Results):
    """Set prediction on DSTC11 track 5, with the entities found in the dialogue and with those of the labels.

    Attributes:
        data: directory of the track's files.
        answers: where each system's answers to `test` are written in the track's form.
        encoders: untrained sentence encoders, the cosine of each a row.
        directory: of the experiment; the models of a seed, where they were trained, are in `seed_N/` below it.
        seeds: that models were trained with.
        earlier: a results file of this table whose rows of other seeds are taken over, where their models are gone.
    """

    title: ClassVar[str] = "DSTC11 track 5 as its task is: sets of snippets"
    about: ClassVar[str] = (
        "Which snippets (sentences of reviews, FAQs) a knowledge-seeking turn needs, all of them, of a held-out tenth "
        "(`test`); that it seeks knowledge is known. Measures of the track: a record is an exact match if both sets "
        "are the same; precision, recall and F1 count snippets over all records. `matched`: candidates are those of "
        "the entities whose names are found in the dialogue; `labels`: of the entities that the labels name, which no "
        "system knows. A rule makes a set of scores (those that reach a share of the highest, at most so many); it is "
        "chosen on another tenth (`dev`), for each row by itself. `bm25…`, `cosine_…` (an untrained encoder), "
        "`bi_encoder` and `cross_encoder` ask with the last turn; `dialki` reads the last turns and whole reviews, and "
        "a snippet's score is the probability of its review times those that it begins and ends there. Trained models "
        "start from one encoder, learn on the other eight tenths until `dev` stops rising, and have a row a seed."
    )

    data: InputFile
    answers: OutputDirectory
    encoders: Sequence[ModelName] = ()
    directory: str | None = None
    seeds: Sequence[Seed] = ()
    earlier: InputFile | None = None

    def run(self) -> dict[str, Any]:
        """Measure, write each system's answers, results and page.

        Raises:
            DataError: broken files, or `earlier` has other rows of what is not trained.
            ModelError: there is no encoder.
        """
        earlier = read_json(self.earlier) if self.earlier else None
        track = read_track(self.data)
        parts = {part: _asked(read_track(self.data, part)) for part in ("train", "dev", "test")}
        seen = {snippet for turn in parts.pop("train") for snippet in turn.label.snippets}
        new = [i for i, turn in enumerate(parts["test"]) if not turn.label.snippets <= seen]
        matcher = EntityMatcher(track.names)
        entities: dict[Entities, Callable[[TrackTurn], Iterable[Entity]]] = {
            "matched": lambda turn: matcher(turn.turns),
            "labels": lambda turn: turn.label.entities,
        }
        rows = []
        for name, seed, score in self._systems():
            for which, of in entities.items():
                rule = choose_rule(score_turns(track, parts["dev"], score, of))
                scored = score_turns(track, parts["test"], score, of)
                found = [Label(True, rule(values)) for _, values in scored]
                write_labels(Path(self.answers) / f"{name}{'' if seed is None else f'_{seed}'}_{which}.json", found)
                own = {"seed": seed, "share": rule.share, "most": rule.most, FIRST: first_right(scored)}
                rows.append(_row(name, which, parts["test"], found, new) | own)
        rows += [_row(name, "labels", parts["test"], found, new) for name, found in _known(track, parts["test"])]
        curves, taken_over = list(self._curves()), None
        if earlier:
            rows, curves, taken_over = self._with_rows_of(earlier, rows, curves)
        named = [matcher(turn.turns) == turn.label.entities for turn in parts["test"]]
        return self.write(
            {
                **self.made_by(),
                "turns": {**{part: len(turns) for part, turns in parts.items()}, "new": len(new)},
                "snippets_a_turn": float(np.mean([len(turn.label.snippets) for turn in parts["test"]])),
                "entities_matched": float(np.mean(named)),
                "rows": rows,
                "summary": _summary(rows),
                "curves": curves,
                "taken_over": taken_over,
            }
        )

    def _with_rows_of(
        self, earlier: Mapping[str, Any], rows: list[dict[str, Any]], curves: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
        """Rows and curves with those of other seeds, in order, and where these came from."""
        ours, theirs = ([row for row in of if row["system"] not in TRAINED] for of in (rows, earlier["rows"]))
        if ours != theirs:
            raise DataError("earlier: what is not trained has other rows there, so its data or measures are others")
        old = [row for row in earlier["rows"] if row["system"] in TRAINED and row["seed"] not in self.seeds]
        trained = sorted([*old, *(row for row in rows if row["system"] in TRAINED)], key=_in_order)
        curves = sorted([*(row for row in earlier["curves"] if row["seed"] not in self.seeds), *curves], key=_in_order)
        origin = {"seeds": sorted({row["seed"] for row in old}), "commit": earlier["commit"]}
        known = len(_KNOWN)
        return [*ours[:-known], *trained, *ours[-known:]], curves, origin

    def _systems(self) -> Iterator[tuple[str, int | None, Score]]:
        yield "bm25", None, by_words(Bm25Config(stemmer="none", stop_words="none"))
        yield "bm25_porter", None, by_words(Bm25Config())
        yield "bm25_snowball", None, by_words(snowball())
        for encoder in self.encoders:
            from reward_models.bottleneck.model import SentenceEncoder

            yield f"cosine_{Path(encoder).name}", None, by_cosine(SentenceEncoder(str(encoder)))
        for kind, seed, path in self._trained():
            if kind == DIALKI:
                yield kind, seed, by_dialki(path)
            else:
                yield kind, seed, scorer_of(kind, open_scorer(kind, str(path / "model")))

    def _trained(self) -> Iterator[tuple[Any, int, Path]]:
        """Kind, seed and directory of the models whose training has ended."""
        for kind in TRAINED:
            for seed in self.seeds:
                path = Path(self.directory or "") / f"seed_{seed}" / kind
                if (path / "model").is_dir():
                    yield kind, seed, path

    def _curves(self) -> Iterator[dict[str, Any]]:
        """What `dev` said of each model while it was trained: of DIALKI the exact match of its best span."""
        for kind, seed, path in self._trained():
            if kind == DIALKI:
                for row in read_curve(path, ("exact_match",)):
                    yield {"system": kind, "seed": seed, **row}
            else:
                for row in read_json(path / "training.json")["dev"]:
                    yield {"system": kind, "seed": seed, **row}

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows, what one right sentence is worth, and what was published."""
        columns = ["system", "seed", "entities", *COLUMNS, NEW, "snippets", FIRST, "share", "most"]
        rows = [{"seed": None, "share": None, "most": None, FIRST: None, **row} for row in result["rows"]]
        published = "; ".join(f"{name} {exact:.3f} and {f1:.3f}" for name, (exact, f1) in PUBLISHED.items())
        turns = result["turns"]
        page = (
            f"{self.opening(result, self.title, self.about)}\n\nTurns: {turns['test']} of test, rules chosen on "
            f"{turns['dev']} of dev. A turn needs {result['snippets_a_turn']:.2f} snippets; the entities that "
            f"are found are those of its labels in {result['entities_matched']:.1%}.\n\n"
            f"{markdown_table(rows, columns)}\n`{NEW}`: F1 over the {turns['new']} turns that need a snippet which no "
            "turn of training needed; the parts share their hotels and restaurants. `snippets`: how many a system "
            f"names for a turn; `{FIRST}`: the snippet with the highest score is one of those needed, which is the "
            "`exact_match` of the pages of models that name one (`dstc11.md`, `dstc11_minilm.md`) where entities are "
            "those of the labels; `share`, `most`: its rule. Two answers know the labels: `one_needed_snippet` always "
            "names one right snippet, "
            "`all_of_the_entities` every snippet of the right entities.\n\nPublished on the track's test part (exact "
            f"match and F1, with entities and detection of their own, not compared with these): {published}.\n"
        )
        if result["summary"]:
            if gone := result.get("taken_over"):
                seeds = ", ".join(map(str, gone["seeds"]))
                page += f"\nRows of seed {seeds} are those of this table as it was made at commit `{gone['commit']}`.\n"
            if len({row["seed"] for row in rows} - {None}) > 1:  # of one seed there is no spread to show
                page += f"\n## Trained models, mean ± standard deviation over seeds\n\n{_spread(result['summary'])}"
            curve = ["system", "seed", "epoch", "step", "f1", "exact_match"]
            said = [{"epoch": None, "step": None, "f1": None, **row} for row in result["curves"]]
            page += (
                "\n## `dev` during training\n\n`f1`, `exact_match`: of sets, by the rule that is best there; of "
                f"`dialki`, which has steps, of its one best span.\n\n{markdown_table(said, curve)}"
            )
        return page


def _asked(track: Track) -> list[TrackTurn]:
    return [turn for turn in track.turns if turn.label.target]


def _row(
    name: str, which: Entities, asked: Sequence[TrackTurn], found: Sequence[Label], new: Sequence[int]
) -> dict[str, Any]:
    labels = [turn.label for turn in asked]
    scores, of_new = track_scores(labels, found), track_scores([labels[i] for i in new], [found[i] for i in new])
    named = float(np.mean([len(label.snippets) for label in found]))
    row = {"system": name, "entities": which, **{key: scores[key] for key in COLUMNS}, "snippets": named}
    return row | {NEW: of_new["selection_f1"] if new else None}


def _in_order(row: Mapping[str, Any]) -> tuple[int, int]:
    return TRAINED.index(row["system"]), row["seed"]


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By trained system and entities: the spread of each measure over seeds."""
    trained = [row for row in rows if row.get("seed") is not None]
    keys = dict.fromkeys((row["system"], row["entities"]) for row in trained)
    return {
        f"{system}, {which}": summarise_rows(
            [row for row in trained if (row["system"], row["entities"]) == (system, which)], (*COLUMNS, FIRST)
        )
        for system, which in keys
    }


def _spread(summary: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    rows = [
        {"system": name, **{column: f"{of['mean']:.3f} ± {of['std']:.3f}" for column, of in columns.items()}}
        for name, columns in summary.items()
    ]
    return markdown_table(rows, ["system", *COLUMNS, FIRST])


def _known(track: Track, asked: Sequence[TrackTurn]) -> Iterable[tuple[str, list[Label]]]:
    """Answers that need the labels: one right snippet, and everything of the right entities."""
    needed, all_of_them = _KNOWN
    yield needed, [Label(True, frozenset({min(turn.label.snippets)})) for turn in asked]
    yield (
        all_of_them,
        [
            Label(True, frozenset(one for entity in turn.label.entities for one in track.texts[entity]))
            for turn in asked
        ],
    )
