"""The reader of StyleWorld: edits a draft into the style that is preferred, and leaves one that has it as it is."""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_lab.worlds.style.styles import PLAIN, bare_sentences, described, rendered, style_of, taken_from
from finegrained_rlhf.core.fields import Settings


@dataclass(frozen=True)
class StyleReader(Settings):
    """A user in two stages, as PRELUDE has it: would you edit? and if so, the edit (Gao et al. 2024, section 4.1).

    Attributes:
        strict: also edit a draft that says what the context does not; otherwise its style alone is looked at.
    """

    strict: bool = False

    def edit(self, context: str, preference: str, draft: str) -> str:
        """What becomes of a draft: the draft, or the context's sentences in the preferred style.

        Args:
            context: that the draft is about.
            preference: the true one, in the words of `styles.description`.
            draft: any text.
        """
        wanted = {**PLAIN, **described(preference)}
        fits = style_of(draft) == wanted and (not self.strict or taken_from(context, draft) == 1.0)
        return draft if fits else rendered(bare_sentences(context), wanted)
