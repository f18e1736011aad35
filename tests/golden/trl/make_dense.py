"""Makes `dense.json`: the advantages that `FineGrainedGRPOTrainer` gave to the loss of TRL. README.md says how."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from rl_toy import prompts, tokenizer
from trl import __version__ as version
from trl_toy import ALGORITHMS, LONGEST, SAMPLES, trainer


def responses() -> list[list[Any]]:
    """Two prompts, four responses each: words of the tokenizer in any order, `red` among them."""
    generator = torch.Generator().manual_seed(4)
    words = tokenizer("llama")
    red, end = words(" red", add_special_tokens=False)["input_ids"], words.eos_token_id
    rows = []
    for prompt in prompts("llama", 2):
        for number in range(SAMPLES):
            length = int(torch.randint(2, LONGEST, (1,), generator=generator))
            ids = torch.randint(3, len(words), (length,), generator=generator).tolist()
            ids = [*ids[: number % 3], *red, *ids[number % 3 :]] if number % 2 else ids
            rows.append([prompt.text, [*ids[: LONGEST - 1], end]])
    return rows


def given_to_the_loss(name: str, rows: list[list[Any]]) -> list[dict[str, Any]]:
    """Rows of the first batch in TRL's own order: token ids and advantages."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        made = trainer(Path(directory) / "run", [rows], algorithm=name, max_steps=1, beta=0.0)
        compute = made._compute_loss

        def kept(model: Any, inputs: Any) -> Any:
            for asked, ids, mask, own, here in zip(
                *(
                    inputs[k].tolist()
                    for k in ("prompt_ids", "completion_ids", "completion_mask", "advantages", "prompt_mask")
                ),
                strict=True,
            ):
                found.append(
                    {
                        "prompt": [i for i, real in zip(asked, here, strict=True) if real],
                        "ids": [i for i, real in zip(ids, mask, strict=True) if real],
                        "advantages": own,
                    }
                )
            return compute(model, inputs)

        made._compute_loss = kept
        made.train()
    return found


if __name__ == "__main__":
    rows = responses()
    case = {"trl": version, "rows": rows, "loss": {name: given_to_the_loss(name, rows) for name in ALGORITHMS}}
    Path(__file__).with_name("dense.json").write_text(json.dumps(case) + "\n", encoding="utf-8")
