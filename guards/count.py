"""`python -m guards.count [classes=true]`: lines, modules, values that stand twice, commands and concepts.

It counts the tree in which it stands and prints a Markdown table; `classes=true` adds the values that stand twice by
class, `output=FILE` writes what is printed to a file too.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import read_arguments, run_main
from finegrained_rlhf.core.errors import ConfigError
from guards.command import ROOT
from guards.doubles import Double, read_doubles

INSTALLED = ("finegrained_rlhf", "reward_models")
"""Packages of the wheel."""
OTHERS = ("scripts", "tests", "benchmarks", "guards", "lab")
"""Top-level directories of Python that are not installed; one that does not exist is left out."""
CONCEPTS = Path(__file__).with_name("concepts.toml")
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Size:
    """How large a directory is.

    Attributes:
        files: how many.
        lines: of all of them, blank ones too.
        code: lines without blank ones, comments and docstrings.
    """

    files: int
    lines: int
    code: int


def python_size(directory: Path) -> Size:
    """Size of the Python files below a directory."""
    texts = [path.read_text(encoding="utf-8") for path in directory.rglob("*.py")]
    return Size(len(texts), sum(len(text.splitlines()) for text in texts), sum(map(code_lines, texts)))


def yaml_size(directory: Path) -> Size:
    """Size of the YAML files below a directory."""
    texts = [path.read_text(encoding="utf-8") for path in directory.rglob("*.yaml")]
    code = sum(bool(line.strip()) and not line.lstrip().startswith("#") for text in texts for line in text.splitlines())
    return Size(len(texts), sum(len(text.splitlines()) for text in texts), code)


def code_lines(text: str) -> int:
    """Lines of a module that hold code: neither blank, nor only a comment, nor part of a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            statements = node.body
        else:
            continue
        for statement in statements:  # a docstring, and the string below an attribute that documents it
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    lines.difference_update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return len(lines)


def count_commands() -> int:
    """The commands of the library."""
    from finegrained_rlhf.launch.commands import NAMES

    return len(NAMES)


def read_concepts(path: Path = CONCEPTS, root: Path = ROOT) -> dict[str, str]:
    """What somebody must have heard of before a first change: name → the file or directory where it stands.

    Raises:
        ConfigError: one stands nowhere any more, so that the list is to be shortened or corrected.
    """
    concepts = {str(one["name"]): str(one["stands_in"]) for one in tomllib.loads(path.read_text("utf-8"))["concept"]}
    for name, place in concepts.items():
        if not (root / place).exists():
            raise ConfigError(f"{path.name}: concept {name!r}: {place}: no such file; correct its place, or delete it")
    return concepts


def by_class(doubles: Sequence[Double]) -> list[str]:
    """Lines of a table: the values of each class that stand twice, most first."""
    counts: Counter[str] = Counter(double.owner for double in doubles)
    equal: Counter[str] = Counter(double.owner for double in doubles if double.equal)
    rows = [f"| `{name}` | {count} | {equal[name]} |" for name, count in counts.most_common()]
    return ["", "| class | values in YAML and class | equal |", "|---|---:|---:|", *rows]


def main(arguments: Sequence[str]) -> None:
    """Print the counts."""
    given = read_arguments(arguments, ("classes", "output"))
    doubles, concepts = read_doubles(ROOT / "conf"), read_concepts()
    lines = ["| what | files | lines | code |", "|---|---:|---:|---:|"]
    sizes = {name: python_size(ROOT / name) for name in INSTALLED}
    installed = Size(*(sum(getattr(size, field) for size in sizes.values()) for field in ("files", "lines", "code")))
    sizes = {"installed": installed, **sizes}
    sizes |= {name: python_size(ROOT / name) for name in OTHERS if (ROOT / name).is_dir()}
    sizes["conf"] = yaml_size(ROOT / "conf")
    if (ROOT / "lab").is_dir():
        sizes["lab, YAML"] = yaml_size(ROOT / "lab")
    lines += [f"| {name} | {size.files:,} | {size.lines:,} | {size.code:,} |" for name, size in sizes.items()]
    equal = sum(double.equal for double in doubles)
    lines += ["", "| what | count |", "|---|---:|"]
    lines += [f"| values in YAML and in the class | {len(doubles):,} |"]
    lines += [f"| … equal | {equal:,} |", f"| … different | {len(doubles) - equal:,} |"]
    lines += [f"| commands | {count_commands()} |", f"| concepts before a first change | {len(concepts)} |", ""]
    lines += [f"{number}. {name}: `{place}`" for number, (name, place) in enumerate(concepts.items(), start=1)]
    if given.get("classes") == "true":
        lines += by_class(doubles)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if "output" in given:
        Path(given["output"]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
