"""Which key was meant: what a message says beside "unknown key"."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

_OTHER_WORDS = {
    "learning_rate": "lr",
    "lr_rate": "lr",
    "max_steps": "total_steps",
    "steps": "total_steps",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "bs": "batch_size",
    "beta": "kl.beta",
    "kl_coef": "kl.beta",
    "num_samples": "samples_per_prompt",
    "gradient_accumulation_steps": "micro_batch_size",
    "output": "output_dir",
    "out": "output_dir",
    "output_directory": "output_dir",
    "eval_data": "validation_data",
    "dev_data": "validation_data",
    "model_name_or_path": "path",
    "bf16": "precision",
    "fp16": "precision",
}
"""Names that other libraries have for keys of ours."""
_MOST = 3


def keys_of(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Every dotted key of a configuration, those of mappings as well."""
    for name, value in config.items():
        if str(name) != "_target_":
            yield f"{above}{name}"
            if isinstance(value, Mapping):
                yield from keys_of(value, f"{above}{name}.")


def suggestion(unknown: str, config: Mapping[str, Any]) -> str:
    """What to say behind "unknown key": the keys that were probably meant; empty where none is near.

    Args:
        unknown: dotted.
        config: plain containers, in which it is not.
    """
    parts = unknown.split(".")
    for end in range(1, len(parts)):
        above = ".".join(parts[:end])
        if _has_value(above, config):
            return f"; {above} takes a value itself: {above}=…"
    near = nearest(unknown, list(keys_of(config)))
    return f"; did you mean {' or '.join(near)}?" if near else ""


def nearest(unknown: str, keys: Collection[str]) -> list[str]:
    """The dotted keys that a dotted key may stand for: at most three, of the first kind of nearness that has any.

    The kinds: a key that ends in it, or one of the same mapping that begins or ends with it; one spelled nearly like
    it; the name that another library has for it; a key of the same mapping that is spelled much like it; a key
    elsewhere with the same last name, or one spelled like it.
    """
    above, _, last = unknown.rpartition(".")
    other = _OTHER_WORDS.get(last)
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == above}
    ends = {key.rpartition(".")[2] for key in keys}
    kinds: tuple[Iterable[str], ...] = (
        (key for key in keys if key.endswith(f".{unknown}")),
        (key for name, key in siblings.items() if name.startswith(f"{last}_") or name.endswith(f"_{last}")),
        difflib.get_close_matches(unknown, keys, n=1, cutoff=0.9),
        (key for key in keys if other is not None and f".{key}".endswith(f".{other}") and key.startswith(above)),
        (siblings[name] for name in difflib.get_close_matches(last, siblings, n=1, cutoff=0.75)),
        (key for key in keys if key.rpartition(".")[2] == last),
        (key for key in keys if other is not None and f".{key}".endswith(f".{other}")),
        (siblings[name] for name in difflib.get_close_matches(last, siblings, n=1)),
        (
            key
            for name in difflib.get_close_matches(last, ends, n=1, cutoff=0.8)
            for key in keys
            if key.endswith(f".{name}")
        ),
    )
    for kind in kinds:
        if matching := sorted(kind, key=lambda key: (key.count("."), key)):
            shallow = [key for key in matching if key.count(".") == matching[0].count(".")]
            return shallow[:_MOST]
    return []


def _has_value(key: str, config: Any) -> bool:
    """Whether a dotted key is there and holds no mapping."""
    for name in key.split("."):
        if not isinstance(config, Mapping) or name not in config:
            return False
        config = config[name]
    return not isinstance(config, Mapping)
