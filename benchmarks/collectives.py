"""A recorder of what a process sends: calls of torch.distributed and the bytes of their tensors, counted as made.

Knows torch.distributed alone: no model, no trainer.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

OBJECTS = "objects"
"""Argument of calls that pickle: their bytes are those of the tensors that they send themselves."""
ARGUMENTS: Mapping[str, str | None] = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "broadcast": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "all_gather_single": "input_tensor",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "gather": "tensor",
    "scatter": "scatter_list",
    "send": "tensor",
    "isend": "tensor",
    "recv": None,
    "irecv": None,
    "barrier": None,
    "all_gather_object": OBJECTS,
    "gather_object": OBJECTS,
    "broadcast_object_list": OBJECTS,
    "scatter_object_list": OBJECTS,
}
"""The argument of each call that a process hands in; None where it hands in nothing."""
OTHER = "other"


class Recorder:
    """Counts of one process, by what a call is for and by its name.

    A call inside another one (those that send pickled objects) belongs to the outer one. In a `broadcast` every process
    counts the buffer, the source sends it and the others receive it.

    Attributes:
        calls: number of calls by (purpose, collective).
        sizes: bytes handed in by (purpose, collective).
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.sizes: Counter[tuple[str, str]] = Counter()
        self._purpose = OTHER
        self._purposes: dict[str, str] = {}
        self._within: tuple[str, str] | None = None

    @contextmanager
    def recording(self, purposes: Mapping[str, str] | None = None) -> Iterator[None]:
        """Count the calls of the block, by whichever name a loaded module knows them.

        Args:
            purposes: what collectives are for that only one thing calls, by their names.
        """
        self._purposes = dict(purposes or {})
        originals = {name: getattr(dist, name) for name in ARGUMENTS if hasattr(dist, name)}
        counted = {id(original): self._counted(name, original) for name, original in originals.items()}
        with ExitStack() as stack:
            for module in list(sys.modules.values()):
                for name, value in list(getattr(module, "__dict__", {}).items()):
                    if id(value) in counted:
                        stack.enter_context(patch.object(module, name, counted[id(value)]))
            yield

    @contextmanager
    def naming(self, owner: type, purposes: Mapping[str, Iterable[str]]) -> Iterator[None]:
        """Say what calls are for: those inside the named methods of a class. The outermost method decides."""
        with ExitStack() as stack:
            for purpose, methods in purposes.items():
                for method in methods:
                    stack.enter_context(patch.object(owner, method, self._named(purpose, getattr(owner, method))))
            yield

    def _named(self, purpose: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._purpose
            self._purpose = purpose if before == OTHER else before
            try:
                return original(*args, **kwargs)
            finally:
                self._purpose = before

        return call

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature, argument = inspect.signature(original), ARGUMENTS[name]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._within
            key = before or (self._purposes.get(name, self._purpose), name)
            if before is None:
                self.calls[key] += 1
            if argument not in (None, OBJECTS) and (before is None or ARGUMENTS[before[1]] == OBJECTS):
                self.sizes[key] += size_of(signature.bind(*args, **kwargs).arguments.get(str(argument)))
            self._within = key
            try:
                return original(*args, **kwargs)
            finally:
                self._within = before

        return call


def size_of(given: Tensor | list[Tensor] | None) -> int:
    """Bytes of a tensor of any shape, or of a list of them; 0 for None."""
    if given is None:
        return 0
    if isinstance(given, Tensor):
        return given.numel() * given.element_size()
    return sum(size_of(one) for one in given)
