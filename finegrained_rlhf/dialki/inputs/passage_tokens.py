"""A passage in tokens, before a dialogue is put before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class PassageTokens:
    """A passage in tokens, before anything is cut.

    Attributes:
        ids: `title [SEP] [CLS] span [CLS] span …`.
        starts: position in `ids` of the `[CLS]` of each span.
        ends: position of the last token of each span.
    """

    ids: Ids
    starts: Ids
    ends: Ids

    def with_room(self, limit: int) -> PassageTokens:
        """The same with a shorter title where otherwise no word of the first span would fit.

        Args:
            limit: tokens of title and spans, at least 3; a title that is cut keeps half of it.
        """
        before = int(self.starts[0])
        if before + 2 <= limit:
            return self
        title = limit // 2
        lost = np.int32(before - 1 - title)
        ids = np.concatenate([self.ids[:title], self.ids[before - 1 :]])
        return PassageTokens(ids, self.starts - lost, self.ends - lost)
