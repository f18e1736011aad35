"""Named arrays, and tables of strings, in one memory-mapped file each.

One file, and so one open file descriptor, holds all arrays of a shard: an index has hundreds of shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_path
from finegrained_rlhf.retrieval.corpus import id_hash

Arrays = Mapping[str, NDArray[Any]]

_TYPES = {
    "U8": np.uint8,
    "U16": np.uint16,
    "I32": np.int32,
    "I64": np.int64,
    "U64": np.uint64,
    "F16": np.float16,
    "F32": np.float32,
}


def save_arrays(path: str | Path, arrays: Arrays) -> None:
    """Write arrays to a safetensors file, atomically."""
    from safetensors.numpy import save_file

    with atomic_path(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)


def open_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, memory-mapped: what is not read takes no memory.

    Returns:
        By name, each of the shape [...] and type that the file's header says, read-only.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        size = int(data[:8].view("<u8")[0])
        header = json.loads(bytes(data[8 : 8 + size]))
        header.pop("__metadata__", None)
        arrays = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            if 8 + size + end > len(data):
                raise ValueError("it is cut off")
            array = data[8 + size + start : 8 + size + end].view(_TYPES[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"])
        return arrays
    except FileNotFoundError:
        raise DataError("no such file; build the index again", file=path) from None
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(f"damaged ({error}); build the index again", file=path) from None


def string_arrays(strings: Sequence[str]) -> dict[str, NDArray[Any]]:
    """What `StringTable` reads.

    Args:
        strings: n of them.

    Returns:
        `text`: uint8 [bytes of all strings], UTF-8; `starts`: int64 [n + 1], where each begins; `hashes`: uint64 [n],
        ascending; `rows`: int32 [n], whose hash each is.
    """
    encoded = [string.encode() for string in strings]
    starts = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=starts[1:])
    hashes = np.fromiter(map(id_hash, strings), np.uint64, len(strings))
    order = np.argsort(hashes, kind="stable")
    return {
        "text": np.frombuffer(b"".join(encoded), np.uint8),
        "starts": starts,
        "hashes": hashes[order],
        "rows": order.astype(np.int32),
    }


class StringTable:
    """Different strings, numbered from 0; finds a string by number and a number by string without loading the table.

    Args:
        arrays: of `string_arrays`, perhaps memory-mapped.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._text, self._starts = arrays["text"], arrays["starts"]
        self._hashes, self._rows = arrays["hashes"], arrays["rows"]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> str:
        return bytes(self._text[self._starts[row] : self._starts[row + 1]]).decode()

    def find(self, strings: Sequence[str]) -> NDArray[np.int64]:
        """int64 [n]: the number of each string, −1 where the table does not have it."""
        hashes = np.fromiter(map(id_hash, strings), np.uint64, len(strings))
        rows = np.full(len(strings), -1, np.int64)
        for i, place in enumerate(np.searchsorted(self._hashes, hashes).tolist()):
            while place < len(self) and self._hashes[place] == hashes[i]:  # different strings may share a hash
                row = int(self._rows[place])
                if self[row] == strings[i]:
                    rows[i] = row
                    break
                place += 1
        return rows
