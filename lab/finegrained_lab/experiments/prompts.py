"""What a scorer is told of a question whose outputs were kept."""

from __future__ import annotations

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage, cut_passages
from finegrained_rlhf.feedback.outputs import OutputRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter


def prompt_of(record: OutputRecord) -> Prompt:
    """The question with its passages, in sentences, and its reference answers."""
    passages: tuple[Passage, ...] = cut_passages(record.passages, shared_segmenter(DEFAULT_SEGMENTER).sentences)
    known = {"question": record.question, "passages": passages, "references": record.references}
    return Prompt(record.id, record.text, (), known)
