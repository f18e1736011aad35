"""How a classifier's logits are read."""

from __future__ import annotations

from typing import Literal

Activation = Literal["sigmoid", "softmax"]
