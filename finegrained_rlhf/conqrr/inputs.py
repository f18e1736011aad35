"""What a query rewriter reads and imitates: dialogues newest turn first, human rewrites for a share of the turns.

Knows questions in dialogues and tokenizers. Knows no model, no retriever and no file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.training.prompts import encode_prompts
from finegrained_rlhf.training.self_critical_rows import Imitation
from finegrained_rlhf.training.sft import demonstrations

MAX_INPUT_TOKENS = 384
MAX_REWRITE_TOKENS = 64


def rewrite_prompts(
    examples: Sequence[RewriteExample], tokenizer: Any, max_tokens: int = MAX_INPUT_TOKENS
) -> list[Prompt]:
    """Policy inputs `u_n [SEP] u_{n-1} [SEP] … u_1`, cut on the right, so that the oldest turns are lost first.

    Args:
        examples: questions with what was said before.
        tokenizer: of the policy.
        max_tokens: longest input, special tokens included.

    Raises:
        ConfigError: the tokenizer cuts on the left, where the newest turn stands.
    """
    side = getattr(tokenizer, "truncation_side", "right")
    if side != "right":
        raise ConfigError(f"the tokenizer's truncation_side is {side!r}; expected right: the newest turn comes first")
    return encode_prompts(
        [(example.id, example.context) for example in examples],
        tokenizer,
        max_tokens,
        metadata=[
            {"question": example.question, "references": () if example.rewrite is None else (example.rewrite,)}
            for example in examples
        ],
    )


def labelled_share(examples: Sequence[RewriteExample], share: float, seed: int) -> frozenset[str]:
    """The ids of the questions whose human rewrite is used: `share` of those that have one.

    The choice depends on ids alone, and a smaller share is part of a larger one (thesis, figure 4.3).

    Args:
        examples: all questions.
        share: 0 to 1; above 0, at least one question is kept.
        seed: of the choice.

    Raises:
        ConfigError: a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"label_share: expected 0 to 1, got {share}")
    names = sorted(
        (example.id for example in examples if example.rewrite is not None),
        key=lambda name: (stable_hash(seed, "label", name), name),
    )
    count = round(share * len(names))
    return frozenset(names[: max(count, 1) if share > 0 else 0])


def imitations(
    examples: Sequence[RewriteExample],
    policy: Policy,
    *,
    labelled: Collection[str],
    rewarded: Collection[str],
    max_input_tokens: int = MAX_INPUT_TOKENS,
    max_rewrite_tokens: int = MAX_REWRITE_TOKENS,
) -> list[Imitation]:
    """Training examples in the order of the questions.

    Args:
        examples: questions.
        policy: whose tokenizer is used.
        labelled: ids of the questions whose rewrite is imitated.
        rewarded: ids of the questions whose rewrites can be rewarded.
        max_input_tokens: longest input, special tokens included.
        max_rewrite_tokens: longest rewrite, end of sequence included.
    """
    prompts = rewrite_prompts(examples, policy.tokenizer, max_input_tokens)
    taught = [prompt for prompt in prompts if prompt.id in labelled]
    answers = {
        item.prompt.id: item.answer_ids
        for item in (demonstrations(taught, policy, max_rewrite_tokens) if taught else [])
    }
    return [Imitation(prompt, answers.get(prompt.id), prompt.id in rewarded) for prompt in prompts]
