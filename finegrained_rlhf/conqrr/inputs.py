"""What a query rewriter reads and imitates: dialogues newest turn first, human rewrites for a share of the turns.

What stands around the dialogue is a template. An encoder–decoder is told by its decoder where the rewrite begins. A
decoder-only policy sees one text, so that its input must end with a cue. A template is stored in the `config.json` of
the model, as `rewrite_template`, so that every copy and export of a checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.conqrr.data import RewriteExample
from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.text.plain_text import literal_texts

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.training.self_critical.rows import Imitation

_PLACE = "{dialogue}"
_KEY = "rewrite_template"


@dataclass(frozen=True)
class RewriteTemplate:
    """A text with `{dialogue}`, once: where the turns stand, newest first.

    Attributes:
        text: the template.
    """

    text: str = _PLACE

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or self.text.count(_PLACE) != 1:
            raise ConfigError(f"template: expected a text with {_PLACE} once, got {self.text!r}")

    @property
    def before(self) -> str:
        """What stands before the dialogue."""
        return self.text.partition(_PLACE)[0]

    @property
    def cue(self) -> str:
        """What stands behind the dialogue; never cut off."""
        return self.text.partition(_PLACE)[2]


BARE = RewriteTemplate()
"""The dialogue alone (thesis, section 4.2)."""
CUED = RewriteTemplate(f"{_PLACE}\nrewrite:")
"""The default of decoder-only policies in training."""


def stored_template(policy: Policy) -> RewriteTemplate | None:
    """The template that a policy was trained with; None where its checkpoint says nothing.

    Raises:
        ModelError: what the checkpoint says is no template.
    """
    text = getattr(policy.model.config, _KEY, None)
    try:
        return None if text is None else RewriteTemplate(text)
    except ConfigError as error:
        raise ModelError(f"config.json of the policy, {_KEY}: {error}") from None


def template_for_training(policy: Policy, text: str | None) -> RewriteTemplate:
    """The template to train a policy with: the one asked for, else what it was trained with, else by its family.

    The policy remembers it: checkpoints made from now on have it.
    """
    from finegrained_rlhf.models.policy import Seq2SeqPolicy

    if text is not None:
        template = RewriteTemplate(text)
    else:
        template = stored_template(policy) or (BARE if isinstance(policy, Seq2SeqPolicy) else CUED)
    setattr(policy.model.config, _KEY, template.text)
    return template


def template_for_rewriting(policy: Policy, text: str | None) -> RewriteTemplate:
    """The template to rewrite with: the one asked for, else what the policy was trained with, else the dialogue alone.

    Raises:
        ModelError: what the checkpoint says is no template.
    """
    return RewriteTemplate(text) if text is not None else stored_template(policy) or BARE


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
