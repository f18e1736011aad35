"""What `python -m guards.count` counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_rlhf.core.errors import ConfigError
from guards.count import code_lines, count_commands, python_size, read_concepts, yaml_size

MODULE = '''"""A module.

Of two lines.
"""

# a comment
LIMIT = 3
"""A documented value."""


def area(width: int) -> str:
    """Say it."""
    text = """two
    lines"""  # and a remark
    return (
        text
    )
'''


def test_lines_of_code_by_hand() -> None:
    assert code_lines(MODULE) == 7  # LIMIT, def, two of the text, three of the return
    assert code_lines("") == 0 and code_lines('"""Only this."""\n') == 0


def test_sizes_of_directories(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room/one.py").write_text(MODULE)
    (tmp_path / "two.py").write_text("a = 1\n\nb = 2\n")
    (tmp_path / "three.yaml").write_text("# says\na: 1\n\nb: 2  # here\n")
    size = python_size(tmp_path)
    assert (size.files, size.lines, size.code) == (2, 20, 9)
    size = yaml_size(tmp_path)
    assert (size.files, size.lines, size.code) == (1, 4, 2)


def test_every_concept_stands_where_the_list_says(tmp_path: Path) -> None:
    assert len(read_concepts()) > 5 and count_commands() > 20
    (tmp_path / "list.toml").write_text('[[concept]]\nname = "walls"\nstands_in = "gone.py"\n')
    with pytest.raises(ConfigError, match="concept 'walls': gone.py: no such file"):
        read_concepts(tmp_path / "list.toml", tmp_path)
