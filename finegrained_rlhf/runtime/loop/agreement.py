"""Whether all processes hold the same trained parameters.

Gradients are summed over processes, never averaged back into one model: processes that start from different parameters,
or update them differently, go on apart without any other sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.runtime.processes import Processes

# Odd factors, so that multiplying by them is a bijection of 64-bit words (SplitMix64's, as signed numbers).
_ELEMENT, _PLACE = -0x61C8864680B583EB, -0x40A7B892E31B1A47
_CHUNK = 1 << 22
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def parameter_hash(parameter: Tensor) -> Tensor:
    """A 64-bit hash of a tensor's exact bits, computed where the tensor lies.

    h = Σ_i mix(b_i, i) mod 2⁶⁴, with b_i the bits of element i as an integer. Sums of integers do not depend on their
    order, so that every device gives the same number; mix is a bijection of b_i for each i, so that one changed element
    always changes the sum.

    Args:
        parameter: any shape and dtype.

    Returns:
        int64 scalar on the parameter's device.
    """
    bits = parameter.detach().reshape(-1).view(_BITS[parameter.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), _CHUNK):
        part = bits[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=bits.device)
        mixed = part * _ELEMENT + places * _PLACE
        mixed = (mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)) * _PLACE  # a logical shift
        total += (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)).sum()
    return total


def check_agreement(parameters: Mapping[str, Tensor], processes: Processes, step: int) -> None:
    """Compare the hashes of all parameters over all processes; every process must call this.

    Args:
        parameters: what is trained, by name, of any shapes, in the same order in every process.
        processes: of the run.
        step: the training step after which this is, for the message.

    Raises:
        ConsistencyError: in all processes alike, when one of them holds other values than the main process.
    """
    if processes.count == 1:
        return
    names = list(parameters)
    hashes = torch.stack([parameter_hash(p).cpu() for p in parameters.values()]).tolist() if names else []
    first, *others = processes.gather_objects([list(zip(names, hashes, strict=True))])
    for rank, digests in enumerate(others, start=1):
        differing = [name for name, value in first if (name, value) not in set(digests)]
        if differing or len(digests) != len(first):
            raise ConsistencyError(
                f"step {step}: process {rank} does not hold the trained parameters of process 0 "
                f"({len(differing)} of {len(first)} differ{', first ' + differing[0] if differing else ''}); "
                "expected the same bits in every process, so nothing is trained or saved from here on"
            )
