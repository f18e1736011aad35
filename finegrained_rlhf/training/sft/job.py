"""Supervised fine-tuning as a configuration: what `finegrained train-sft` builds and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from finegrained_rlhf.core.markers import DataName, at_least
from finegrained_rlhf.inference.config import ResponseMonitor
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.plain_text import TooLong
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER
from finegrained_rlhf.training.supervised.job import Epochs, PolicyRun


@dataclass(frozen=True, kw_only=True)
class TrainSFT(PolicyRun):
    """Supervised fine-tuning of a policy on first references, on the answers of conversations, or on whole texts.

    The best policy by RougeLSum, or by likelihood, ends up in `output_dir/policy`. Fields of every training run: see
    `TrainingRun`; without `total_steps`, `epochs` counts.

    Attributes:
        data: prompt file, or data set of the Hub (`org/name:split`), to train on.
        whole_texts: learn the texts of `data` themselves, from their second token on, instead of answers to them
            (decoder-only policies); validation then measures the likelihood of those of `validation_data`.
        validation_data: prompt file for validation; None trains without, and the last model is exported.
        validation_prompts: use at most so many of them; None uses all.
        validation_batch_size: prompts answered at once in a process.
        max_prompt_tokens: longest prompt in tokens.
        max_answer_tokens: longest answer, or with `whole_texts` text, in tokens, end of sequence included.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum.
        monitor: measures validation answers as well, for example by FactWorld's oracle.
    """

    assembly: ClassVar[str] = "finegrained_rlhf.training.sft.trainer.assemble_sft"
    shards_weights: ClassVar[bool] = True

    data: DataName
    validation_data: DataName | None = None
    epochs: Epochs = 10
    whole_texts: bool = False
    validation_prompts: Annotated[int | None, at_least(1)] = None
    max_prompt_tokens: int = 1024
    max_answer_tokens: Annotated[int, at_least(2)] = 200
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    segmenter: str = DEFAULT_SEGMENTER
    monitor: ResponseMonitor | None = None
