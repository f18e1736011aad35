"""Floor 1: advantages, losses and KL as pure functions of tensors. Knows no model, no reward and no process."""
