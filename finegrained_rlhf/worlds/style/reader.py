"""The reader of StyleWorld: edits a draft into the style that is preferred, and leaves one that has it as it is.

Knows the style and the context. Does not know who wrote the draft, or how.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrained_rlhf.worlds.style.styles import PLAIN, bare_sentences, described, rendered, style_of


@dataclass(frozen=True)
class StyleReader:
    """A user in two stages, as PRELUDE has it: would you edit? and if so, the edit (Gao et al. 2024, section 4.1)."""

    def edit(self, context: str, preference: str, draft: str) -> str:
        """What becomes of a draft: the draft, or the context's sentences in the preferred style.

        Args:
            context: that the draft is about.
            preference: the true one, in the words of `styles.description`.
            draft: any text; its style alone is looked at.
        """
        wanted = {**PLAIN, **described(preference)}
        return draft if style_of(draft) == wanted else rendered(bare_sentences(context), wanted)
