"""What stands around the dialogue in a rewriter's input, and how a checkpoint remembers it.

An encoder–decoder is told by its decoder where the rewrite begins. A decoder-only policy sees one text, so that its
input must end with a cue. A template is stored in the `config.json` of the model, as `rewrite_template`, so that every
copy and export of a checkpoint has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy


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
