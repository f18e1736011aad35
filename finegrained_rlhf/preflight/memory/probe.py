"""Shapes of models without their weights, and what autograd keeps of one layer of them.

Reads no weights. One layer runs forward with uninitialised weights at full width, on the run's own device and through
the run's own code, so that the count includes what its kernels keep. Layers are alike, so two counts, of one layer and
of two, give any number of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt, pad_rows
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.families import t5
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.fused import fuse
from finegrained_rlhf.models.families.packed import PassCost, pass_cost, pass_tokens
from finegrained_rlhf.models.families.seq2seq import Stacks, seq2seq_family
from finegrained_rlhf.models.from_disk import open_adapter_config, open_generation_config
from finegrained_rlhf.models.loading import model_directory, read_model_config
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel, ValueModel
from finegrained_rlhf.models.weights.frozen import linear_parameters
from finegrained_rlhf.models.weights.sharded import matrices_of, sharded_layers, tables_of
from finegrained_rlhf.preflight.memory.plan import Activations, Blocks, ModelShape, Tables
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.chat import recorded_prompt


@dataclass(frozen=True)
class Layers:
    """How many layers a shell has; `encoder` is not read for a causal model."""

    encoder: int
    decoder: int


@dataclass(frozen=True)
class ProbeBatch:
    """One prompt with its responses.

    Attributes:
        samples: N.
        prompt_tokens: L.
        response_tokens: T.
        pieces: tokens of each piece of the prompt that is encoded alone; empty: it is encoded whole.
    """

    samples: int
    prompt_tokens: int
    response_tokens: int
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbeDevice:
    """Where a layer runs, and where the run will.

    Attributes:
        processes: device and precision here.
        cuda: whether the run's device is a GPU. What T5's attention keeps on a CPU alone, where it is written out (the
            probabilities, heads · length² a row), is then left out.
        fused: whether the run's models are (`models/families/fused.py`).
    """

    processes: Processes
    cuda: bool = False
    fused: bool = False

    @property
    def here(self) -> torch.device:
        """The device of the probe."""
        return self.processes.device

    @property
    def in_bf16(self) -> bool:
        """Whether passes run under bf16 autocast."""
        return self.processes.precision == "bf16"


def with_layers(config: Any, layers: Layers | None) -> Any:
    """A copy of a model's configuration with other numbers of layers; None changes none."""
    config = copy.deepcopy(config)
    if layers is None:
        return config
    parts = [(config, "num_hidden_layers", layers.decoder)]
    if config.is_encoder_decoder:
        stacks = _stacks(config)
        parts = [(stacks.encoder, stacks.layers[0], layers.encoder), (stacks.decoder, stacks.layers[1], layers.decoder)]
    for part, name, number in parts:
        if getattr(part, "layer_types", None):
            part.layer_types = part.layer_types[:number]
        setattr(part, name, number)
    return config


def _stacks(config: Any) -> Stacks:
    return seq2seq_family(config).stacks(config)


def layers_of(config: Any) -> Layers:
    """How many layers a model of this configuration has."""
    if not config.is_encoder_decoder:
        return Layers(0, config.num_hidden_layers)
    stacks = _stacks(config)
    return Layers(getattr(stacks.encoder, stacks.layers[0]), getattr(stacks.decoder, stacks.layers[1]))


def decoder_config(config: Any) -> Any:
    """The part of a configuration that says how large the decoder is; the whole of it for a causal model."""
    return _stacks(config).decoder if config.is_encoder_decoder else config


def blocks_of(module: nn.Module) -> Blocks:
    """What lies in the matrices of a model's blocks."""
    blocks = [matrices_of(block) for block in sharded_layers(module)]
    matrices = [parameter for block in blocks for parameter in block]
    linear = {id(parameter) for parameter in linear_parameters(module)}
    return Blocks(
        matrices=sum(parameter.numel() for parameter in matrices),
        trained=sum(parameter.numel() for parameter in matrices if parameter.requires_grad),
        linear=sum(parameter.numel() for parameter in matrices if id(parameter) in linear),
        largest=max((sum(parameter.numel() for parameter in block) for block in blocks), default=0),
    )


def tables_in(module: nn.Module) -> Tables:
    """What lies in embeddings and head of the transformers model in a module."""
    tables, linear = _tables(module), {id(parameter) for parameter in linear_parameters(module)}
    return Tables(
        numbers=count(tables),
        trained=count(table for table in tables if table.requires_grad),
        linear=count(table for table in tables if id(table) in linear),
    )


def _tables(module: nn.Module) -> list[nn.Parameter]:
    return tables_of(next(part for part in module.modules() if isinstance(part, PreTrainedModel)))


def largest_outside(module: nn.Module, tables: Iterable[Tensor] = ()) -> int:
    """Numbers in the largest trained tensor of any shape that is no matrix of a block, and none of `tables`."""
    split = {id(own) for block in sharded_layers(module) for own in matrices_of(block)} | {id(own) for own in tables}
    return max((own.numel() for own in module.parameters() if own.requires_grad and id(own) not in split), default=0)


def config_of_model(path: str, export: str = "policy", revision: str | None = None) -> Any:
    """The configuration of the model in a directory, or of the one that a run exported there.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    return read_model_config(model_directory(path, export, revision))


def policy_shell(config: PolicyConfig, tokenizer: Any, layers: Layers | None = None) -> Policy:
    """The policy of a run on the meta device: its modules, adapters included, without memory.

    Args:
        config: of the policy.
        tokenizer: of the policy.
        layers: replaces its numbers of layers.

    Raises:
        ModelError: the directory holds no configuration or no adapter.
    """
    directory = model_directory(config.path, revision=config.revision)
    model_config = with_layers(read_model_config(directory), layers)
    auto = AutoModelForSeq2SeqLM if model_config.is_encoder_decoder else AutoModelForCausalLM
    wrapper = None
    with torch.device("meta"):
        model = auto.from_config(model_config, dtype=torch.float32)
        _untie_head(model, directory)
        if config.adapter is not None:
            wrapper = _adapter_shell(model, config.adapter)
        elif config.lora is not None:
            wrapper = add_lora(model, config.lora)
    if (directory / "generation_config.json").is_file():
        model.generation_config = open_generation_config(directory)
    kind = Seq2SeqPolicy if model_config.is_encoder_decoder else CausalPolicy
    policy = kind(model, tokenizer, wrapper).eval()
    policy.prompt = recorded_prompt(directory)
    return policy


def _untie_head(model: Any, directory: Path) -> None:
    """Give the head a weight of its own where the stored model has one, as loading does whatever the configuration."""
    names: set[str] = set()
    for path in directory.glob("*.safetensors"):
        try:
            with safe_open(path, "pt") as file:
                names.update(file.keys())
        except SafetensorError as error:
            raise ModelError(f"{path}: damaged weights ({error})") from None
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is head)
    others = (part for part in model.modules() if isinstance(part, nn.Embedding))
    if f"{name}.weight" in names and any(head.weight is part.weight for part in others):
        head.weight = nn.Parameter(torch.empty_like(head.weight))


def _adapter_shell(model: Any, directory: str) -> Any:
    """A saved adapter's modules twice, as `load_adapter` holds them: one trained, one frozen."""
    import peft

    config = open_adapter_config(directory)
    config.inference_mode = False
    wrapped = peft.get_peft_model(model, config)
    wrapped.add_adapter("reference", config)
    wrapped.set_adapter("default")
    for name, parameter in wrapped.named_parameters():
        parameter.requires_grad_(".default." in name)
    return wrapped


def value_shell(config: ValueConfig, policy: Policy, layers: Layers | None = None, heads: int = 1) -> ValueModel | None:
    """The value model of a run on the meta device; None where it has none.

    Raises:
        ModelError: it does not fit the policy.
    """
    if config.kind == "none":
        return None
    with torch.device("meta"):
        if config.path is None:
            return SharedTrunkValueModel(policy, heads).eval()
        backbone = AutoModel.from_config(
            with_layers(config_of_model(config.path, revision=config.revision), layers), dtype=torch.float32
        )
        return SeparateValueModel(backbone, policy, heads).eval()


def shape_of(module: nn.Module, config: Any, device: str = "cpu") -> ModelShape:
    """Sizes of a policy's model or a value model.

    Args:
        module: on any device.
        config: of its language model.
        device: the type of the device that it will run on.
    """
    causal = not config.is_encoder_decoder
    decoder = module if causal else next(m for name, m in module.named_modules() if name.split(".")[-1] == "decoder")
    layers = layers_of(config)
    config = decoder_config(config)
    width: int = config.hidden_size
    heads: int = config.num_attention_heads
    head_width: int = getattr(config, "d_kv", None) or getattr(config, "head_dim", None) or width // heads
    return ModelShape(
        parameters=count(module.parameters()),
        trained=count(p for p in module.parameters() if p.requires_grad),
        decoder_parameters=count(layer_parameters(decoder, config)),
        encoder_layers=layers.encoder,
        decoder_layers=layers.decoder,
        width=width,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
        heads=heads,
        feed_forward=feed_forward_width(config),
        feed_forward_copies=feed_forward_copies(module, config),
        vocabulary=config.vocab_size,
        packed=_packed(config),
        cost=pass_cost(module, config, device) if _packed(config) else PassCost(),
        gated=_gated(module),
        blocks=blocks_of(module),
        tables=tables_in(module),
        largest_outside=largest_outside(module),
        largest_beside=largest_outside(module, _tables(module)),
    )


def feed_forward_width(config: Any) -> int:
    """Width of the feed-forward layers, under whichever name a family has it; four times the model's by default."""
    inner = (getattr(config, name, None) for name in ("d_ff", "intermediate_size", "n_inner", "decoder_ffn_dim"))
    return next((size for size in inner if size), 4 * config.hidden_size)


def _packed(config: Any) -> bool:
    family = CAUSAL_FAMILIES.get(config.model_type)
    return family is not None and family.packed


def feed_forward_copies(module: nn.Module, config: Any) -> int:
    """Values as wide as the feed-forward layer that exist together in a pass without gradients."""
    names = (getattr(config, name, None) for name in ("dense_act_fn", "activation_function", "hidden_act"))
    if next((name for name in names if name), None) == "gelu_new":
        return 4
    return 3 if _gated(module) else 2


def _gated(module: nn.Module) -> bool:
    return any("gate" in name or ".wi_1." in name for name, _ in module.named_parameters())


def count(parameters: Iterable[Tensor]) -> int:
    """How many numbers these tensors of any shape hold."""
    return sum(parameter.numel() for parameter in parameters)


def layer_parameters(module: nn.Module, config: Any) -> Iterator[Tensor]:
    """All parameters but embeddings and head, which have one row a token of the vocabulary, [V, …]."""
    rows = decoder_config(config).vocab_size
    return (parameter for parameter in module.parameters() if parameter.shape[0] != rows)


def saved_bytes(module: nn.Module, run: Callable[[], object]) -> int:
    """Bytes of the tensors that autograd keeps for the backward pass of `run`; the weights of `module` do not count."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}  # held, so that no address comes twice

    def keep(tensor: Tensor) -> Tensor:
        bare = tensor.detach()  # a saved output would hold its own graph for ever
        kept[bare.untyped_storage().data_ptr()] = bare
        return bare

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in own)


def policy_activations(
    policy: Policy, config: PolicyConfig, shared: bool, batch: ProbeBatch, device: ProbeDevice
) -> Activations:
    """What autograd keeps of a policy.

    Args:
        policy: the shell of the whole of it.
        config: what it was made from.
        shared: whether a value head reads its states.
        batch: what it reads.
        device: where.
    """

    def kept(layers: Layers) -> int:
        small = policy_shell(config, policy.tokenizer, layers)
        head = value_shell(ValueConfig("shared"), small) if shared else None
        modules = nn.ModuleList([small, *([head] if head else [])]).to_empty(device=device.here)
        prompt, index, ids = _inputs(small.eos_ids[0], batch, device.here)

        def run() -> object:
            hidden = small.hidden(small.encode([prompt]), index, ids)
            return head.from_hidden(hidden) if isinstance(head, SharedTrunkValueModel) else hidden

        return _saved(modules, run, policy.model.config, device)

    return _activations(kept, policy.model, batch, device)


def value_activations(policy: Policy, config: ValueConfig, batch: ProbeBatch, device: ProbeDevice) -> Activations:
    """What autograd keeps of a value model of its own, beside this policy; see `policy_activations`."""
    assert config.path is not None
    full_config = config_of_model(config.path, revision=config.revision)

    def kept(layers: Layers) -> int:
        shell = value_shell(config, policy, layers)
        assert shell is not None
        model = shell.to_empty(device=device.here)
        prompt, index, ids = _inputs(policy.eos_ids[0], batch, device.here)
        aligned = t5.ALIGNED if device.here.type == "cuda" and t5.is_t5(policy.model) else 1
        rows = pad_rows([prompt.input_ids], policy.pad_id, device.here, aligned)
        memory = PromptMemory([prompt], *rows, None)
        return _saved(model, lambda: model(memory, index, ids), full_config, device)

    shell = value_shell(config, policy)
    assert shell is not None
    return _activations(kept, shell.backbone, batch, device)


def _inputs(token: int, batch: ProbeBatch, device: torch.device) -> tuple[Prompt, Tensor, Tensor]:
    """A prompt, the prompt of each response, and the responses [N, T]."""
    ids = torch.full((batch.samples, batch.response_tokens), token, device=device)
    prompt = Prompt("probe", "", (token,) * batch.prompt_tokens, pieces=batch.pieces)
    return prompt, torch.zeros_like(ids[:, 0]), ids


@torch.no_grad()
def _fuse(module: nn.Module) -> None:
    """Fuse what has no weights yet: any will do, but norms are compared with torch's own on a row."""
    for parameter in module.parameters():
        parameter.zero_()
    fuse(module)


def _saved(module: nn.Module, run: Callable[[], object], config: Any, device: ProbeDevice) -> int:
    """Saved bytes less the bf16 copies of layers' weights, which do not grow with the batch."""
    if device.fused:
        _fuse(module)
    with device.processes.autocast():
        total = saved_bytes(module, run)
    return total - (2 * count(layer_parameters(module, config)) if device.in_bf16 else 0)


def _activations(kept: Callable[[Layers], int], model: Any, batch: ProbeBatch, device: ProbeDevice) -> Activations:
    config = model.config
    one = kept(Layers(1, 1))
    encoder = kept(Layers(2, 1)) - one if config.is_encoder_decoder else 0
    decoder = kept(Layers(1, 2)) - one
    outside = max(0, one - encoder - decoder)
    width, rows = 4 * decoder_config(config).hidden_size, batch.samples
    encoder_width = 4 * seq2seq_family(config).stacks(config).encoder.hidden_size if config.is_encoder_decoder else 0
    tokens = rows * batch.response_tokens
    if not config.is_encoder_decoder:
        counted = [rows], batch.prompt_tokens, batch.response_tokens
        tokens = pass_tokens(model.base_model, device.here.type, *counted)
    elif device.cuda and device.here.type == "cpu" and t5.is_t5(model):
        scores = decoder_config(config).num_attention_heads * (2 if device.in_bf16 else 4)
        pieces = batch.pieces or (batch.prompt_tokens,)
        encoder -= scores * sum(length**2 for length in pieces)
        decoder -= scores * rows * batch.response_tokens**2
    return Activations(
        outside=outside,
        encoder_layer=encoder,
        decoder_layer=decoder,
        encoder_input=encoder_width * batch.prompt_tokens,
        decoder_input=width * tokens,
    )
