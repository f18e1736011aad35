"""An advantage estimator for verl: what `VerlRewardManager` put into `reward_extra_info` becomes dense advantages.

verl's reward loop pays one number a response, at its last token. Importing this module imports verl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from finegrained_rlhf.bridges.paid import PAID, estimate_of_paid, read_paid
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, GroupAdvantages

try:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
except ImportError as error:
    raise ConfigError(f"verl cannot be imported ({error}); make env-verl makes an environment with it") from None

NAME, HANDED = "fine_grained", "gdpo"
"""Of our estimator; and the one name of an estimator to which verl hands what managers put beside a reward."""


def register_verl_estimator(algorithm: AdvantageEstimator | None = None) -> None:
    """Register our estimator with verl, as `fine_grained` and in the place of verl's own `gdpo`.

    verl's `compute_advantage` gives `non_tensor_batch` to an estimator of the name `gdpo` alone, so set
    `algorithm.adv_estimator=gdpo`; a trainer of one's own may hand it to `fine_grained`. Call this in the process of
    verl's trainer: at the top of a module that `VERL_USE_EXTERNAL_MODULES` names.

    Args:
        algorithm: an estimator without a value model; RLOO on the sum of each response where None.
    """
    chosen = algorithm or GroupAdvantages()

    def fine_grained(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any] | None = None,
        config: Any = None,
        non_tensor_batch: Any = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor]:
        """Advantages [R, T], as advantages and as returns. Of verl's rewards only the device and the type are read."""
        if index is None or non_tensor_batch is None or PAID not in non_tensor_batch:
            raise ConfigError(
                f"verl handed its estimator no reward_extra_info[{PAID!r}]; expected algorithm.adv_estimator={HANDED}, "
                "a VerlRewardManager as reward manager, and the trainer that keeps what it gives "
                "(trainer.use_v1=false where verl has the choice)"
            )
        paid = [read_paid(text) for text in non_tensor_batch[PAID]]
        made = estimate_of_paid(paid, response_mask, [str(mark) for mark in index], chosen)
        advantages = made.advantages.to(token_level_rewards)
        return advantages, advantages

    for name in (NAME, HANDED):
        ADV_ESTIMATOR_REGISTRY.pop(name, None)
        register_adv_est(name)(fine_grained)
