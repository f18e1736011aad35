"""Peak memory of log-probabilities and their backward pass: in chunks of tokens, and with stored logits.

Example: python benchmarks/logprobs_memory.py out=benchmarks/results/logprobs_memory.json

One rollout of the paper's size (32 responses of 200 tokens, T5-large's width and vocabulary, fp32). Both sides compute
log-probability and entropy of the same tokens under the same head, and the gradients of states and head.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine, peak_memory
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.logprobs import token_logprobs
from finegrained_rlhf.text.tables import markdown_table

RESPONSES, TOKENS, WIDTH, VOCABULARY = 32, 200, 1024, 32128

Side = Callable[[Tensor, Tensor, torch.nn.Linear], Tensor]


def chunked(states: Tensor, tokens: Tensor, head: torch.nn.Linear) -> Tensor:
    """This project's function."""
    return token_logprobs(states, tokens, torch.ones_like(tokens), head).logprobs


def stored(states: Tensor, tokens: Tensor, head: torch.nn.Linear) -> Tensor:
    """Logits of all tokens at once, as the original code keeps them."""
    log_p = head(states).float().log_softmax(dim=-1)
    with torch.no_grad():
        (log_p.exp() * log_p).sum(dim=-1)
    return log_p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def measure(side: Side, device: torch.device) -> tuple[float, Tensor]:
    """Peak GiB above what lay in memory before, and the gradient of the states."""
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, device=device)
    states = torch.randn(RESPONSES, TOKENS, WIDTH, device=device, requires_grad=True)
    tokens = torch.randint(VOCABULARY, (RESPONSES, TOKENS), device=device)
    with peak_memory(device) as peak:
        side(states, tokens, head).sum().backward()
    assert states.grad is not None
    if peak.rise is None:
        raise SystemExit("peak memory is known on Linux and on CUDA only")
    return peak.rise / 2**30, states.grad


def main(arguments: Sequence[str]) -> None:
    """Measure both sides, print a table, write JSON.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, ("out",), needed=("out",))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ours, gradient = measure(chunked, device)
    plain, expected = measure(stored, device)
    difference = float((gradient - expected).abs().max() / expected.abs().max())
    rows = [{"log-probabilities": "in chunks", "peak GiB": ours}, {"log-probabilities": "stored", "peak GiB": plain}]
    print(markdown_table(rows, ["log-probabilities", "peak GiB"]))
    print(f"largest relative difference of the gradients: {difference:.1e}")
    machine = describe_machine(device, "fp32")
    result = {"machine": machine, "chunked_gib": ours, "stored_gib": plain, "gradient_difference": difference}
    write_json(given["out"], result)


if __name__ == "__main__":
    run_main(main)
