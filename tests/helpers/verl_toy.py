"""A batch as verl hands it to a reward manager, where verl is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from finegrained_rlhf.core.records import pad_rows


class FakeDataProto:
    """What a manager reads of verl's `DataProto`: left-padded prompts, right-padded responses, one mask for both."""

    def __init__(self, asked: list[list[int]], answered: list[list[int]], width: int, **objects: Any) -> None:
        longest = max(map(len, asked))
        left = torch.tensor([[0] * (longest - len(row)) + row for row in asked])
        left_mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in asked])
        ids, mask = pad_rows(answered, 0)
        ids, mask = (torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in (ids, mask))
        self.batch = {
            "prompts": left,
            "responses": ids,
            "attention_mask": torch.cat([left_mask, mask], dim=1),
            "input_ids": torch.cat([left, ids], dim=1),
        }
        self.non_tensor_batch = {name: np.array(column, dtype=object) for name, column in objects.items()}

    def __len__(self) -> int:
        return len(self.batch["prompts"])
