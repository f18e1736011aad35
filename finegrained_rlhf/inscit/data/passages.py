"""The passages of a data set and of its corpus by id, and whether the corpus has what the data names.

A passage that the data holds is taken from there, as people saw it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialogue.records import PART_SEPARATOR, Passage
from finegrained_rlhf.inscit.data.reading import InscitReading, read_inscit
from finegrained_rlhf.inscit.data.records import EvidencePassage, InscitTurn, turns_of
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages.store import PassageStore, ids_in_store, is_store


def read_known_inscit(path: str | Path, known_passages: str | None) -> InscitReading:
    """Read a file of conversations whose evidence, where a corpus is named, is all in it.

    Args:
        path: of the conversations.
        known_passages: corpus (file or directory) or directory of its `PassageStore`; None checks nothing. Without a
            store the corpus is read until all passages are found.

    Raises:
        DataError: as `read_inscit`: a passage is not in the corpus, or the file is damaged; or there is no such corpus.
    """
    reading = read_inscit(path)
    if known_passages is None:
        return reading
    ids = passages_of_turns(turns_of(reading.conversations)).keys()
    if is_store(known_passages):
        present = ids_in_store(known_passages, ids)
    else:
        present = set()
        for passage in Corpus(known_passages) if ids else ():
            if passage.id in ids:
                present.add(passage.id)
                if len(present) == len(ids):
                    break
    return reading if len(present) == len(ids) else read_inscit(path, present)


def passages_of_turns(turns: Sequence[InscitTurn]) -> dict[str, EvidencePassage]:
    """Every passage that a label or an earlier turn of the data rests on."""
    known: dict[str, EvidencePassage] = {}
    for turn in turns:
        for part in (*turn.earlier, *(label.evidence for label in turn.labels)):
            known |= {one.id: one for one in part}
    return known


def check_corpus_keys(corpus: str | None, store: str | None) -> None:
    """Raise ConfigError where a store is named without its corpus."""
    if store is not None and corpus is None:
        raise ConfigError("store: expected the corpus that it was built of as well")


def corpus_passages(ids: Collection[str], corpus: str, store: str | None) -> dict[str, Passage]:
    """The passages of a corpus with these ids, by its store or, without one, by reading it once.

    Raises:
        DataError: an id is not in the corpus, or the store is of another one.
    """
    opened, wanted = Corpus(corpus), sorted(set(ids))
    return opened.find(wanted) if store is None else PassageStore(store, opened).find(wanted)


def corpus_evidence(passage: Passage) -> EvidencePassage:
    """A passage of a corpus as evidence, its titles apart."""
    titles = tuple(title for title in passage.title.split(PART_SEPARATOR) if title)
    return EvidencePassage(passage.id, passage.text, titles)


def passages_by_id(
    ids: Collection[str], turns: Sequence[InscitTurn], corpus: str | None, store: str | None
) -> dict[str, EvidencePassage]:
    """The passages with these ids, from the data or, where it lacks them, from the corpus.

    Args:
        ids: of passages.
        turns: of the data.
        corpus: file or directory; None looks up nothing, and leaves out what the data lacks.
        store: directory of the corpus's `PassageStore`; None reads the corpus once from its beginning.

    Raises:
        DataError: an id is not in the corpus either.
    """
    known = passages_of_turns(turns)
    missing = sorted(set(ids) - known.keys())
    if missing and corpus is not None:
        known |= {name: corpus_evidence(one) for name, one in corpus_passages(missing, corpus, store).items()}
    return {name: known[name] for name in ids if name in known}
