"""The entropy bonus: a coefficient that stays, or that moves to keep the entropy of a policy near a target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EntropyBonus:
    """Coefficient c of a term −c·H in the loss, H in nats a token.

    With a target the bonus acts only after a step whose entropy was at the target or below, and c then grows by `step`;
    after one above it c shrinks by as much, not below 0.
    Source: He et al. (2025), "Skywork Open Reasoner 1", arXiv 2505.22312, section 4 (adaptive entropy control).

    Attributes:
        coefficient: c, ≥ 0.
        target: wanted entropy in nats a token; None leaves c alone.
        step: by how much c moves after a training step.
        below: whether the entropy of the last step was at the target or below; read with a target.
    """

    coefficient: float
    target: float | None = None
    step: float = 0.005
    below: bool = False

    @property
    def on(self) -> bool:
        """Whether there is, or ever can be, a bonus."""
        return self.coefficient > 0 or self.target is not None

    @property
    def weight(self) -> float:
        """What multiplies the entropy in this step."""
        return self.coefficient if self.target is None or self.below else 0.0

    def update(self, entropy: float) -> None:
        """Take in the mean entropy of a step's tokens, nats."""
        if self.target is not None:
            self.below = entropy <= self.target
            self.coefficient = max(0.0, self.coefficient + (self.step if self.below else -self.step))

    def state(self) -> dict[str, float | bool]:
        """What a checkpoint must keep."""
        return {"coefficient": self.coefficient, "below": self.below}

    def load_state(self, state: dict[str, float | bool]) -> None:
        """Take back what `state` gave, or nothing, of before there was a bonus.

        A coefficient without a target stays the configured one.
        """
        if self.target is not None and state:
            self.coefficient, self.below = float(state["coefficient"]), bool(state["below"])
