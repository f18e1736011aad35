"""Writes `numbers.json` beside it, and the tables of docs/algorithms.md: what the cases give now.

`PYTHONPATH=.:tests/helpers python tests/golden/gradients/make.py [TABLE …]`
"""

from __future__ import annotations

import sys

from gradient_cases import GOLDEN, PAGE, TABLES, with_tables

from finegrained_rlhf.core.files import read_json, write_json


def main() -> None:
    """Make the named tables anew, or all."""
    kept = read_json(GOLDEN) if GOLDEN.is_file() else {}
    for name in sys.argv[1:] or TABLES:
        kept[name] = {row: case.numbers() for row, case in TABLES[name]().items()}
    kept = {name: kept[name] for name in TABLES if name in kept}
    write_json(GOLDEN, kept)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
