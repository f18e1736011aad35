"""Users over time on StyleWorld: one who is known, one who is new, one who wants something else from now on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from finegrained_lab.protocols.prelude.inputs.contexts import read_contexts
from finegrained_lab.worlds.style.drafts import prompt_row, read_wanted
from finegrained_lab.worlds.style.writer import StyleWriter
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.generation.protocol import Generation
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, OutputFile, at_least
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.personalization.span_feedback import NOTE_TITLE
from finegrained_rlhf.text.templates import task_text

KNOWN, NEW, CHANGED = "known", "new", "changed"
STREAMS = (KNOWN, NEW, CHANGED)


@dataclass(frozen=True)
class UserStreams(Settings):
    """Writes the rounds of three users, each with `STREAM.jsonl` of contexts, and one `preferences.json` for all.

    The last rounds are the same contexts in all three. The known user wants of each source what its reader wants,
    before and then; the new one has no earlier rounds and wants of each source what another source's reader wants; the
    changed one is as the known one before, and as the new one then.

    Attributes:
        contexts: file of contexts.
        preferences: file of the true preference by source.
        output_dir: where the files go.
        earlier: rounds before those that are measured.
    """

    contexts: InputFile
    preferences: InputFile
    output_dir: OutputDirectory
    earlier: Annotated[int, at_least(1)] = 40

    def run(self) -> dict[str, int]:
        """Write; returns the rounds of each user.

        Raises:
            ConfigError: no round is left to measure.
            DataError: a file is damaged.
        """
        wanted = read_wanted(self.contexts, self.preferences)
        if len(wanted) <= self.earlier:
            raise ConfigError(f"earlier: expected fewer than the {len(wanted)} contexts, got {self.earlier}")
        true = {one.source: preference for one, preference in wanted}
        sources = list(true)
        turned = {f"{old}, changed": true[new] for old, new in zip(sources, [*sources[1:], sources[0]], strict=True)}
        before, then = ([one for one, _ in part] for part in (wanted[: self.earlier], wanted[self.earlier :]))
        changed = [replace(one, source=f"{one.source}, changed") for one in then]
        rounds = {KNOWN: before + then, NEW: changed, CHANGED: before + changed}
        for name, contexts in rounds.items():
            write_jsonl(Path(self.output_dir) / f"{name}.jsonl", map(asdict, contexts))
        write_json(Path(self.output_dir) / "preferences.json", true | turned)
        return {name: len(contexts) for name, contexts in rounds.items()}


@dataclass(frozen=True, kw_only=True)
class PolicyDrafts(Settings):
    """A language model whose drafts a policy writes, and whose every other reply is a script's without errors.

    The policy reads the context as a question, and the preference that it is to write by as a passage.

    Attributes:
        policy: a run directory, a checkpoint or a model directory.
        max_new_tokens: longest draft.
    """

    policy: ModelName
    max_new_tokens: Annotated[int, at_least(1)] = 64
    _opened: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """A draft, decoded greedily, or a preference as JSON.

        Raises:
            DataError: a prompt without fenced data.
            ModelError: the policy cannot be read.
        """
        data = fenced_data(prompt)
        if "context" not in data or "examples" in data:
            return StyleWriter(slips=0.0, misreads=0.0, notices=1.0).generate(prompt, schema)
        notes = [Passage.uncut("", note, NOTE_TITLE) for note in (data.get("preference"),) if note]
        written: Generation = self._writer().generate(task_text(data["context"], notes))
        return written

    def _writer(self) -> Any:
        from finegrained_rlhf.inference import LocalGenerator

        if not self._opened:
            self._opened["writer"] = LocalGenerator(str(self.policy), self.max_new_tokens)
        return self._opened["writer"]


@dataclass(frozen=True)
class RoundsToTexts(Settings):
    """Writes what edits made of drafts as prompt files: with the notes that the drafts were written by, and without.

    Attributes:
        rounds: `rounds.jsonl` of a run of PRELUDE.
        contexts: file of its contexts.
        agent: whose rounds.
        noted: the file with notes.
        plain: the file without.
    """

    rounds: InputFile
    contexts: InputFile
    agent: str
    noted: OutputFile
    plain: OutputFile

    def run(self) -> int:
        """Write both; returns how many texts there are."""
        contexts = {one.id: one for one in read_contexts(self.contexts)}
        rows = [row for row in read_jsonl(self.rounds) if row["agent"] == self.agent and not row["unanswered"]]
        for path, notes in ((self.noted, True), (self.plain, False)):
            texts = (
                prompt_row(contexts[row["context"]], row["edited"], note=row["preference"] if notes else "")
                for row in rows
            )
            write_jsonl(path, texts)
        return len(rows)
