"""What a query rewriter reads and imitates: dialogues newest turn first, human rewrites for a share of the turns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.conqrr.templates import BARE, RewriteTemplate
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.text.plain_text import literal_texts

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.training.self_critical.rows import Imitation


MAX_INPUT_TOKENS = 384
MAX_REWRITE_TOKENS = 64


def rewrite_prompts(
    examples: Sequence[RewriteExample],
    tokenizer: Any,
    max_tokens: int = MAX_INPUT_TOKENS,
    template: RewriteTemplate = BARE,
) -> list[Prompt]:
    """Policy inputs: the template around `u_n [SEP] u_{n-1} [SEP] … u_1`, whose oldest turns are lost first.

    What looks like a control token or like the separator in a turn is written apart, so that it stays a word.

    Args:
        examples: questions with what was said before.
        tokenizer: of the policy.
        max_tokens: longest input, special tokens and template included.
        template: what stands around the dialogue; its cue is never cut off.

    Raises:
        ConfigError: the tokenizer cuts on the left, where the newest turn stands; or the cue leaves no room.
    """
    side = getattr(tokenizer, "truncation_side", "right")
    if side != "right":
        raise ConfigError(f"the tokenizer's truncation_side is {side!r}; expected right: the newest turn comes first")
    literal = literal_texts(tokenizer, PART_SEPARATOR.strip())
    contexts = [PART_SEPARATOR.join(map(literal, example.turns)) for example in examples]
    cue = tokenizer(template.cue, add_special_tokens=False)["input_ids"] if template.cue else []
    if cue and len(cue) > max_tokens - 2:
        raise ConfigError(f"max_input_tokens: expected more than the {len(cue)} tokens of the template's cue and 2")
    prompts = encode_prompts(
        [(example.id, template.before + context) for example, context in zip(examples, contexts, strict=True)],
        tokenizer,
        max_tokens - len(cue),
        metadata=[
            {"question": example.question, "references": () if example.rewrite is None else (example.rewrite,)}
            for example in examples
        ],
    )
    return [_with_cue(prompt, template.cue, cue, _ends(tokenizer)) for prompt in prompts] if cue else prompts


def _with_cue(prompt: Prompt, text: str, cue: Sequence[int], ends: int) -> Prompt:
    """A prompt with a cue before the special tokens at its end."""
    place = len(prompt.input_ids) - ends
    ids = (*prompt.input_ids[:place], *cue, *prompt.input_ids[place:])
    return replace(prompt, text=prompt.text + text, input_ids=ids)


def _ends(tokenizer: Any) -> int:
    """How many special tokens a tokenizer puts behind a text."""
    ids, alone = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    added = len(ids) - len(alone)
    return added - next((start for start in range(added) if ids[start : start + len(alone)] == alone), added)


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
    template: RewriteTemplate = BARE,
) -> list[Imitation]:
    """Training examples in the order of the questions.

    Args:
        examples: questions.
        policy: whose tokenizer is used.
        labelled: ids of the questions whose rewrite is imitated.
        rewarded: ids of the questions whose rewrites can be rewarded.
        max_input_tokens: longest input, special tokens included.
        max_rewrite_tokens: longest rewrite, end of sequence included.
        template: what stands around the dialogue.
    """
    from finegrained_rlhf.training.self_critical.rows import Imitation
    from finegrained_rlhf.training.sft.trainer import demonstrations

    prompts = rewrite_prompts(examples, policy.tokenizer, max_input_tokens, template)
    taught = [prompt for prompt in prompts if prompt.id in labelled]
    answers = {
        item.prompt.id: item.answer_ids
        for item in (demonstrations(taught, policy, max_rewrite_tokens) if taught else [])
    }
    return [Imitation(prompt, answers.get(prompt.id), prompt.id in rewarded) for prompt in prompts]
