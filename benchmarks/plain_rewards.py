"""The reward models of the plain side: transformers' own Longformer, one text and one tokenisation an input.

Knows the templates and how the original code finds the separators. Does not know tokens of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LongformerForSequenceClassification, LongformerForTokenClassification

from benchmarks.workload import COMPONENTS, EOS, PlainSegmenter, Workload, reward_tokenizer
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.text.segmentation import Span
from finegrained_rlhf.text.templates import completeness_input, context_text, factuality_input, relevance_input

REWARD_BATCH = 32


def reward_input(name: str, prompt: Prompt, segments: Sequence[str], response: str) -> str:
    """The text that a reward model reads."""
    question, passages = prompt.metadata["question"], prompt.metadata["passages"]
    if name == "relevance":
        return " ".join(relevance_input(question, segments, "</s>"))
    if name == "factuality":
        return " ".join(factuality_input(question, context_text(passages), segments, "</s>"))
    return completeness_input(prompt.text, response)


def spans(name: str, text: str) -> list[Span]:
    """The segments that a component judges; the whole text for completeness."""
    segmenter = PlainSegmenter()
    if name == "relevance":
        return segmenter.sub_sentences(text)
    return segmenter.sentences(text) if name == "factuality" else [(0, len(text))]


def reward_inputs(name: str, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[str]:
    """The R texts that a component's model reads."""
    cut = [[text[a:b] for a, b in spans(name, text)] for text in texts]
    return [reward_input(name, *row) for row in zip(prompts, cut, texts, strict=True)]


class PlainRewards:
    """Three Longformers as transformers computes them.

    Args:
        workload: where they lie.
    """

    def __init__(self, workload: Workload) -> None:
        self.device = workload.device
        self.tokenizer = reward_tokenizer(workload.profile.vocabulary)
        self.models: dict[str, Any] = {}
        for name, kind in COMPONENTS.items():
            auto = LongformerForSequenceClassification if kind == "completeness" else LongformerForTokenClassification
            with quiet_transformers():
                model = auto.from_pretrained(workload.directory / name, trust_remote_code=False)
                self.models[name] = model.to(self.device).eval()

    @torch.no_grad()
    def score(self, name: str, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[list[float]]:
        """One component's values: R lists, one value a segment."""
        values: list[list[float]] = []
        inputs = reward_inputs(name, prompts, texts)
        for start in range(0, len(inputs), REWARD_BATCH):
            batch = self.tokenizer(inputs[start : start + REWARD_BATCH], padding=True, return_tensors="pt")
            ids, mask = batch["input_ids"].to(self.device), batch["attention_mask"].to(self.device)
            logits = self.models[name](input_ids=ids, attention_mask=mask).logits.float()
            if name == "completeness":
                values += logits.tolist()
                continue
            for row_ids, row in zip(batch["input_ids"], logits.argmax(dim=-1).cpu(), strict=True):
                separators = (row_ids == EOS).nonzero().flatten()[:-1]  # the last one ends the input
                values.append([-1.0 if label else 1.0 for label in row[separators].tolist()])
        return values
