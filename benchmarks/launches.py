"""What a GPU has to start: operations of the update, of scoring and of a decoding step at the models' real depth.

Examples:
    python benchmarks/launches.py out=launches.json           # T5-large, Llama 3.2 1B, Qwen3-0.6B, T5Gemma; minutes
    python -m benchmarks.launches family=t5 layers=2          # seconds
    python -m benchmarks.launches family=t5,llama fused=false # as `processes.fused=false` runs them
    python -m benchmarks.launches family=t5 compiled=true     # with `processes.compiled=true`; compiles a minute or two

Runs two epochs of a step of the project's own trainer, in bf16 autocast, in half of the shipped experiment's
micro-batches (four prompts with four responses of 200 tokens), with tiny widths, on which the number of operations does
not depend.
Operations are those that reach torch's dispatcher and compute something: no views, no memory that is only reserved.
What is one kernel on CUDA and several operations here counts as one, its backward pass as one more (see `on_cuda`). A
compiled graph counts what its generated code starts. See docs/benchmarks.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch._inductor.output_code import CompiledFxGraph
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode

from benchmarks.command import read_arguments, run_main
from benchmarks.families import FAMILIES, CausalShape, T5Shape
from benchmarks.ours import Ours
from benchmarks.profiles import PROFILES, LongformerShape, Profile
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.families import attention, heads, packed, t5
from finegrained_rlhf.models.families import compiled as families_compiled
from finegrained_rlhf.models.families import fused as families_fused
from finegrained_rlhf.rollout import fast
from finegrained_rlhf.rollout.steppers import fused_layers
from finegrained_rlhf.rollout.steppers import t5 as t5_stepper
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.tables import markdown_table

NAMES = ("t5", "llama", "qwen3", "t5gemma")
_RESERVED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "device"}
KINDS = {
    "casts": {"_to_copy"},
    "matrix products": {"mm", "bmm", "addmm", "baddbmm", "product"},
    "attention": {"attention", "_scaled_dot_product_flash_attention_for_cpu"},
    "additions": {"add", "add_", "sum", "mean"},
    "multiplications, powers, roots": {"mul", "mul_", "div", "pow", "rsqrt", "neg", "addcmul"},
    "fused kernels": {"fused"},
    "copies": {"clone", "copy_", "cat", "stack", "index_copy", "index_copy_", "index_select", "_foreach_copy_"},
}
"""Names of torch's operations by what they do; a backward pass of a kernel has the kernel's kind."""


class Launches(TorchDispatchMode):
    """Counts operations.

    Attributes:
        names: how often each has run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self._silent = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        schema = function._schema
        name = schema.name.split("::")[1]
        views = [result.alias_info is not None and not result.alias_info.is_write for result in schema.returns]
        if not self._silent and name not in _RESERVED and not (views and all(views)):
            self.names[name] += 1
        return function(*args, **(kwargs or {}))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Count nothing meanwhile."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def kernel(self, name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """`function`, counted as one operation `name`, and its backward pass as one `name backward`."""

        def launch(*inputs: Any, **options: Any) -> Tensor:
            if torch.compiler.is_compiling():
                return function(*inputs, **options)
            result: Tensor = _Kernel.apply(self, name, lambda *given: function(*given, **options), *inputs)  # type: ignore[no-untyped-call]
            return result

        return launch

    @contextmanager
    def graphs(self) -> Iterator[None]:
        """Let a compiled graph count the kernels that it starts; torch runs none under a mode like this one."""
        run, compiled, flex = CompiledFxGraph.__call__, families_compiled.compiled, attention._flex

        def counted(graph: CompiledFxGraph, inputs: Any) -> Any:
            if not self._silent:
                self.names.update(kernels_of(graph.source_code))
            with self.silent():
                return run(graph, inputs)

        def without_mode(function: Any) -> Any:
            def block(*arguments: Any, **options: Any) -> Any:
                with _disable_current_modes():
                    return compiled(function)(*arguments, **options)

            return block

        def with_mode(*arguments: Any) -> Any:
            with nullcontext() if _get_current_dispatch_mode() is self else self:
                return flex(*arguments)

        with ExitStack() as patches:
            patches.enter_context(patch.object(CompiledFxGraph, "__call__", counted))
            patches.enter_context(patch.object(attention, "_flex", torch.compiler.disable(with_mode)))
            patches.enter_context(patch.object(families_compiled, "compiled", without_mode))
            yield

    def counted(self, owner: Any, name: str, kept: list[Counter[str]]) -> Any:
        """A patch of a method of `owner` that keeps what each call of it runs."""
        inner = getattr(owner, name)

        def outer(*arguments: Any, **options: Any) -> Any:
            before = self.names.copy()
            result = inner(*arguments, **options)
            kept.append(self.names - before)
            return result

        return patch.object(owner, name, outer)


_STARTS = re.compile(r"(?:cpp_fused\w*|extern_kernels\.(?P<extern>\w+)|torch\.ops\.\w+\.(?P<aten>\w+)\.\w+)\(")


def kernels_of(code: str) -> Counter[str]:
    """What the code that torch generated for a graph starts when it is called: fused kernels, and torch's own."""
    body = code.partition("def call(")[2].partition("\ndef ")[0]
    names = [found["extern"] or found["aten"] or "fused" for found in _STARTS.finditer(body)]
    return Counter(name for name in names if name not in _RESERVED)


class _Kernel(torch.autograd.Function):
    """Any function of tensors, counted once in each direction."""

    @staticmethod
    def forward(ctx: Any, count: Launches, name: str, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        with count.silent(), torch.enable_grad():
            given = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
            result = function(*given)
        count.names[name] += 1
        ctx.of_kernel = count, name, given, result
        return result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        count, name, given, result = ctx.of_kernel
        asked = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        with count.silent():
            gradients = iter(torch.autograd.grad(result, asked, gradient))
        count.names[f"{name} backward"] += 1
        wanted = [next(gradients) if isinstance(x, Tensor) and x.requires_grad else None for x in given]
        return None, None, None, *wanted


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    mask = bias if bias is None or bias.dtype == torch.bool else bias.to(query.dtype)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return attended.transpose(1, 2).contiguous().transpose(1, 2)  # as the kernel of CUDA lays it out


_on_cpu, _NAMESPACE = heads.bf16_product, "launches"


@torch.library.custom_op((2 * ":").join((_NAMESPACE, "product")), mutates_args=())
def _product(a: Tensor, b: Tensor) -> Tensor:
    """`bf16_product` as one operation, which a compiled graph does not take apart."""
    return _on_cpu(a, b)


@_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(len(a), b.shape[1], dtype=torch.float32)


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    prompts, columns = query.shape[0], query.shape[2]
    seen = create_mask(mask.mask_mod, prompts, None, columns, columns, device="cpu")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale, enable_gqa=True)


@contextmanager
def on_cuda(count: Launches) -> Iterator[None]:
    """Let models take on this CPU the branches that they take on CUDA.

    Each of these is one kernel there: attention with a bias that has a gradient, FlexAttention, RMS norms by torch's
    own function, products of bf16 matrices summed in fp32, and such a product added to an fp32 matrix.
    """
    takes_flex = attention.takes_flex
    product = count.kernel("product", _product)

    def add_product(hidden: Tensor, states: Tensor, weight: Tensor, in_place: bool) -> Tensor:
        added = partial(families_fused.add_product, in_place=False)
        return (count.kernel("addmm", added) if in_place else added)(hidden, states, weight)

    with ExitStack() as patches:
        for owner, name, stand_in in (
            (t5, "attend", torch.compiler.disable(count.kernel("attention", _fused_attention))),
            (heads, "bf16_product", product),
            (families_fused, "bf16_product", product),
            (t5_stepper, "bf16_product", product),
            *((owner, "sums_in_product", lambda device: True) for owner in (t5_stepper, fused_layers)),
            *((owner, "add_product", add_product) for owner in (t5_stepper, fused_layers)),
            (attention, "takes_flex", lambda backbone, config, device: takes_flex(backbone, config, "cuda")),
            (packed, "takes_flex", lambda backbone, config, device: takes_flex(backbone, config, "cuda")),
            (attention, "_compiled", lambda *shape: count.kernel("attention", _flex)),
            (F, "rms_norm", count.kernel("norm", F.rms_norm)),
        ):
            patches.enter_context(patch.object(owner, name, stand_in))
        patches.enter_context(count.graphs())
        yield


def small_profile(name: str, layers: int | None) -> Profile:
    """The profile `gpu` of a family with tiny widths, in half of the micro-batches of the shipped experiment."""
    profile = replace(PROFILES["gpu"], **FAMILIES.get(name, {}).get("gpu", {}))

    def small(shape: T5Shape | CausalShape) -> T5Shape | CausalShape:
        depth = layers or shape.layers
        if isinstance(shape, T5Shape):
            return T5Shape(32, 64, depth, 2, shape.gated)
        return CausalShape(shape.family, 32, 64, depth, 4, 2, 8)

    return replace(
        profile,
        family=name,
        device="cpu",
        policy=small(profile.policy),
        value=small(profile.value),
        reward=LongformerShape(32, 64, 1, 2, 512, 2048),
        vocabulary=1024,
        prompts=8,
        micro_batch_prompts=4,
        micro_batch_tokens=None,
        prompt_tokens=64,
        epochs=2,
        lengths=("fixed",),
        rounds=1,
        warmup=0,
    )


@dataclass(frozen=True)
class Counts:
    """Operations by name.

    Attributes:
        update: of a micro-batch, the mean over those of an epoch.
        scoring: of a micro-batch, by policy, value model and reference.
        decoding: of a step, which gives each row one token.
        layers: of the policy's decoder.
    """

    update: Counter[str]
    scoring: Counter[str]
    decoding: Counter[str]
    layers: int

    def record(self) -> dict[str, int]:
        """The totals, as they are written."""
        return {
            "update_per_micro_batch": self.update.total(),
            "scoring_per_micro_batch": self.scoring.total(),
            "decode_per_token": self.decoding.total(),
            "layers": self.layers,
        }


def count_launches(
    name: str, layers: int | None = None, new_tokens: int = 200, fused: bool = True, compiled: bool = False
) -> Counts:
    """Count the operations of a family's step.

    Args:
        name: `t5` or a key of `FAMILIES`.
        layers: of each stack; None takes the real depth.
        new_tokens: length of the responses; the head goes through 512 of a micro-batch's tokens at once.
        fused: as `processes.fused`.
        compiled: as `processes.compiled`.
    """
    profile = replace(small_profile(name, layers), new_tokens=new_tokens)
    count = Launches()
    update: list[Counter[str]] = []
    scoring: list[Counter[str]] = []
    decoding: list[Counter[str]] = []
    packed._blocks.cache_clear()
    with tempfile.TemporaryDirectory() as directory, on_cuda(count):
        processes = ProcessConfig(profile.precision, fused=fused, compiled=compiled)
        ours = Ours(Workload(profile, Path(directory)), "fixed", Path(directory) / "run", processes=processes)
        if compiled:  # torch compiles nothing while operations are counted
            ours.step()
        with (
            count.counted(fast._Loop, "_advance", decoding),
            count.counted(ours.trainer._scorer, "score", scoring),
            count.counted(ours.trainer._update, "_backward", update),
            count,
        ):
            ours.step()
    batches = len(update) // profile.epochs  # the second epoch's: the weights have changed since they were last read
    middle = sorted(decoding, key=Counter.total)[len(decoding) // 2]
    return Counts(_mean(update[batches:], batches), _mean(scoring, batches), middle, profile.policy.layers)


def _mean(counts: Sequence[Counter[str]], among: int) -> Counter[str]:
    total: Counter[str] = sum(counts, Counter())
    return Counter({name: round(number / among) for name, number in total.items()})


def kind_of(name: str) -> str:
    """The kind that an operation belongs to."""
    plain = name.removesuffix(" backward")
    if plain == "norm":
        return "norms"
    return next((kind for kind, names in KINDS.items() if plain in names), "others")


def _table(counts: dict[str, Counts]) -> str:
    rows = []
    for name, counted in counts.items():
        for part in ("update", "scoring", "decoding"):
            kinds: Counter[str] = Counter()
            for operation, number in getattr(counted, part).items():
                kinds[kind_of(operation)] += number
            rows.append({"family": name, "of": part, "all": kinds.total(), **{kind: kinds[kind] for kind in _COLUMNS}})
    return markdown_table(rows, ["family", "of", "all", *_COLUMNS])


_COLUMNS = (*KINDS, "norms", "others")
_SWITCHES = ("fused", "compiled")


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Count, print a table by kind, write JSON if asked.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, ("out", "family", "layers", *_SWITCHES))
    names = NAMES if "family" not in given else tuple(given["family"].split(","))
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"family: expected one of {', '.join(NAMES)}, got {name!r}")
    layers = given.get("layers")
    if layers is not None and not (layers.isdecimal() and int(layers)):
        raise ConfigError(f"layers: expected a whole number from 1, got {layers!r}")
    for name in _SWITCHES:
        if given.get(name, "true") not in ("true", "false"):
            raise ConfigError(f"{name}: expected true or false, got {given[name]!r}")
    switches = {name: given[name] == "true" for name in _SWITCHES if name in given}
    torch.set_num_threads(1)
    depth = None if layers is None else int(layers)
    counts = {name: count_launches(name, depth, **switches) for name in names}
    print(_table(counts))
    result = {name: counted.record() for name, counted in counts.items()}
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
