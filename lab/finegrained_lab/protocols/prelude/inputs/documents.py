"""PRELUDE's rounds of the user's own documents: equally many of each source, each source shuffled by itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from finegrained_lab.protocols.prelude.inputs.contexts import SourcedContext, read_contexts
from finegrained_rlhf.core.checks import as_index, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, sha256_of, write_json, write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.learners.prelude import check_agent

TASTES_OF_TASKS: Mapping[str, Mapping[str, str]] = {
    "summarization": {
        "cnn_dailymail": (
            "targeted to young children, storytelling, short sentences, playful language, interactive, positive"
        ),
        "slf5k": "second person narrative, brief, show emotions, invoke personal reflection, immersive",
        "wikipedia": "bullet points, parallel structure, brief",
        "CShorten/ML-ArXiv-Papers": ("tweet style, simple English, inquisitive, skillful foreshadowing, with emojis"),
        "imdb": "question answering style, direct, concise",
    },
    "email": {
        "slf5k": "informal, conversational, short, no closing",
        "ccby": "structured, straight to the points, respectful, professional greeting and closing",
        "ampere": "casual tone, positive, clear, call to action",
        "paper_tweet": "engaging, personalized, professional tone, thankful closing",
    },
}
"""Preferences by task and source (Gao et al. 2024, table 1); sources as the paper's experiment files name them."""
_OTHER_IN_CODE = {
    ("summarization", "cnn_dailymail"): (
        "style targeted to young children, storytelling, short sentences, playful language, interactive, positive"
    ),
    ("summarization", "imdb"): "question answering style",
    ("email", "slf5k"): "informal, conversational, no closing",
}
TASK_SENTENCES = {
    "summarization": 'Write a summary of the article in the field "context".',
    "email": 'Write a short email from the notes in the field "context".',
}
"""What agents are to write, for `task` of `finegrained run-prelude`."""
_AGENTS = {
    "oracle-preference": "oracle",
    "no-learning": "no_learning",
    "explore-exploit": "explore_then_exploit",
    "continual": "continual",
    "icl-edit": "icl_edit",
    "cipher-1": "cipher_1",
    "cipher-n": "cipher",
}


@dataclass(frozen=True)
class PreludeExperiment:
    """An experiment file of the paper's repository.

    Attributes:
        task: a key of `TASTES_OF_TASKS`.
        rounds: T.
        seed: of the documents.
        sources: in their order.
        agents: names for `finegrained run-prelude`, by the encoder that they retrieve with; "" has those that retrieve
            nothing.
    """

    task: str
    rounds: int
    seed: int
    sources: tuple[str, ...]
    agents: Mapping[str, tuple[str, ...]]


def read_prelude_experiment(path: str | Path) -> PreludeExperiment:
    """An experiment file: `task_config` with task, num_train_ex, seed and maybe datasets, and `agent_configs`.

    Raises:
        DataError: the file is missing, or a field is not as it should be.
    """
    try:
        experiment = as_object(read_json(path), "experiment")
        config = as_object(get_field(experiment, "task_config"), "task_config")
        task = require_text(get_field(config, "task", "task_config."), "task_config.task")
        require(task in TASTES_OF_TASKS, f"expected one of {', '.join(TASTES_OF_TASKS)}", "task_config.task")
        rounds, seed = (
            as_index(get_field(config, name, "task_config."), f"task_config.{name}")
            for name in ("num_train_ex", "seed")
        )
        sources = config.get("datasets") or list(TASTES_OF_TASKS[task])
        sources = text_list(sources, "task_config.datasets")
        known = set(sources) <= set(TASTES_OF_TASKS[task]) and len(set(sources)) == len(sources)
        require(known, f"expected some of {', '.join(TASTES_OF_TASKS[task])}, each once", "task_config.datasets")
        agents: dict[str, list[str]] = {}
        for name, row in as_object(get_field(experiment, "agent_configs"), "agent_configs").items():
            encoder, agent = _agent(as_object(row, f"agent_configs.{name}"), f"agent_configs.{name}")
            agents.setdefault(encoder, []).append(agent)
    except DataError as error:
        raise error.at(file=path) from None
    return PreludeExperiment(
        task, rounds, seed, tuple(sources), {encoder: tuple(names) for encoder, names in agents.items()}
    )


def _agent(row: Mapping[str, Any], field: str) -> tuple[str, str]:
    kind = require_text(get_field(row, "agent", f"{field}."), f"{field}.agent")
    require(kind in _AGENTS, f"expected one of {', '.join(_AGENTS)}", f"{field}.agent")
    name = _AGENTS[kind]
    if name in ("icl_edit", "cipher"):
        name = f"{name}_{as_index(get_field(row, 'icl_count', f'{field}.'), f'{field}.icl_count')}"
    try:
        check_agent(name)
    except ConfigError as error:
        raise DataError(str(error), field=f"{field}.icl_count") from None
    encoder = require_text(row.get("encoder_type", ""), f"{field}.encoder_type", empty=True)
    return encoder, name


@dataclass(frozen=True)
class MakePreludeContexts(Settings):
    """Make PRELUDE's rounds of documents: T / S of each of S sources, in mixed order.

    Writes `contexts.jsonl` and `preferences.json`, which `finegrained run-prelude` reads, and `manifest.json`: what was
    taken, the sentence for `task`, and the agents of the experiment file.

    Attributes:
        documents: file of the user's documents, one a line: `id`, `source` (as in `TASTES_OF_TASKS`), `text`.
        output_dir: where the files go.
        experiment_file: the paper's, which says task, rounds, seed and sources; None takes them from here.
        task: `summarization` (5 sources × 40 of 200 rounds) or `email` (4 × 50).
        rounds: T.
        seed: of the documents and their order.
        compat: draw as the released code does: one NumPy generator shuffles the sources one after the other, so that
            what is taken of one depends on the size of those before it; and take its preferences, three of which are
            not those of the paper.
    """

    documents: InputFile
    output_dir: OutputDirectory
    experiment_file: str | None = None
    task: str = "summarization"
    rounds: Annotated[int, at_least(1)] = 200
    seed: Seed = 0
    compat: bool = False

    def __post_init__(self) -> None:
        if self.task not in TASTES_OF_TASKS:
            raise ConfigError(f"task: expected one of {', '.join(TASTES_OF_TASKS)}, got {self.task!r}")

    def run(self) -> dict[str, Any]:
        """Write the rounds.

        Returns:
            What `manifest.json` has.

        Raises:
            DataError: a file is not as it should be, or a source has too few documents.
        """
        agents: Mapping[str, Sequence[str]] = {}
        task, rounds, seed, sources = self.task, self.rounds, self.seed, tuple(TASTES_OF_TASKS[self.task])
        if self.experiment_file is not None:
            experiment = read_prelude_experiment(self.experiment_file)
            task, rounds, seed, sources, agents = (
                experiment.task,
                experiment.rounds,
                experiment.seed,
                experiment.sources,
                experiment.agents,
            )
        each = rounds // len(sources)
        if each < 1:
            raise ConfigError(f"rounds: expected at least {len(sources)}, one of each source, got {rounds}")
        documents: dict[str, list[SourcedContext]] = {source: [] for source in sources}
        for one in read_contexts(self.documents):
            if one.source in documents:
                documents[one.source].append(one)
        for source, own in documents.items():
            if len(own) < each:
                raise DataError(
                    f"expected at least {each} documents of {source}, found {len(own)}", file=self.documents
                )
        drawn = _as_released(documents, each, seed) if self.compat else _drawn(documents, each, seed)
        if len({one.text for one in drawn}) < len(drawn):
            raise DataError("two documents that were drawn have the same text", file=self.documents)
        tastes = dict(TASTES_OF_TASKS[task])
        if self.compat:
            tastes |= {source: text for (of, source), text in _OTHER_IN_CODE.items() if of == task}
        directory = Path(self.output_dir)
        write_jsonl(directory / "contexts.jsonl", ({"id": d.id, "source": d.source, "text": d.text} for d in drawn))
        write_json(directory / "preferences.json", {source: tastes[source] for source in sources})
        manifest = {
            "task": task,
            "sentence": TASK_SENTENCES[task],
            "rounds": len(drawn),
            "each": each,
            "seed": seed,
            "compat": self.compat,
            "documents": sha256_of(Path(self.documents)),
            "agents": {encoder: list(names) for encoder, names in agents.items()},
        }
        write_json(directory / "manifest.json", manifest)
        print(f"{len(drawn)} rounds of {task}, {each} of each of {len(sources)} sources -> {directory}")
        for encoder, names in agents.items():
            print(f"agents{f' with {encoder}' if encoder else ''}: [{','.join(names)}]")
        return manifest


def _drawn(documents: Mapping[str, list[SourcedContext]], each: int, seed: int) -> list[SourcedContext]:
    """Each source from random numbers of its own: another source more or less changes nothing of what is taken."""
    taken: list[SourcedContext] = []
    for source, own in documents.items():
        taken += random.Random(stable_hash(seed, "documents", source)).sample(own, each)
    random.Random(stable_hash(seed, "order")).shuffle(taken)
    return taken


def _as_released(documents: Mapping[str, list[SourcedContext]], each: int, seed: int) -> list[SourcedContext]:
    rng = np.random.default_rng(seed)
    orders = [list(own) for own in documents.values()]
    for own in orders:
        rng.shuffle(own)  # type: ignore[arg-type]
    taken = [one for own in orders for one in own[:each]]
    rng.shuffle(taken)  # type: ignore[arg-type]
    return taken
