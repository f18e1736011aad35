"""How a classifier reads: what its logits say, and what becomes of a text that is too long."""

from __future__ import annotations

from typing import Literal

Activation = Literal["sigmoid", "softmax"]
TooLong = Literal["truncate", "refuse"]
