"""What a user types, made ready for Hydra: options behind overrides, and quotes where Hydra's grammar asks for some.

Hydra refuses a value with a letter outside ASCII, an apostrophe or an equals sign unless it stands in quotes. A value
that is valid in that grammar (a number, a list, a sweep, a quoted text) is left as it was typed.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import grammar_parser
from omegaconf.errors import GrammarParseError

from finegrained_rlhf.core.errors import ConfigError

_CLOSING = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class CommandLine:
    """The arguments of a command, read.

    Attributes:
        overrides: `KEY=VALUE` and `GROUP=OPTION`, as Hydra reads them.
        options: words that begin with a dash, each before its value.
        help: whether an option asks for the help of the command.
        config_directory: further directory of configurations, which the user names; None without.
        config_name: configuration in place of the command's; None without.
    """

    overrides: tuple[str, ...]
    options: tuple[str, ...] = ()
    help: bool = False
    config_directory: str | None = None
    config_name: str | None = None

    @property
    def words(self) -> list[str]:
        """The arguments in an order in which Hydra reads all of them."""
        return [*self.overrides, *self.options]


def read_command_line(words: Sequence[str], *, multirun: bool = False) -> CommandLine:
    """Read the arguments of a command.

    Args:
        words: without the program's name.
        multirun: whether commas separate values even without `--multirun`.

    Raises:
        ConfigError: an option that does not exist, or one without its value.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]  # argparse prints its usage in several lines
    overrides, options = _divided(words, parser)
    known = parser.parse_args(options)
    return CommandLine(
        tuple(hydras_words(overrides, multirun=multirun or known.multirun)),
        tuple(options),
        known.help,
        known.config_dir,
        known.config_name,
    )


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message} (--hydra-help lists the options)")


def _divided(words: Sequence[str], parser: ArgumentParser) -> tuple[list[str], list[str]]:
    """Overrides, and options with their values."""
    actions = {name: action for action in parser._actions for name in action.option_strings}
    overrides, options = [], []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        options.append(word)
        action = actions.get(word)
        if left and action is not None and (action.nargs is None or left[0] in (action.choices or ())):
            options.append(left.pop(0))
    return overrides, options


def hydras_words(overrides: Sequence[str], *, multirun: bool = False) -> list[str]:
    """Overrides with quotes around the values that Hydra cannot read as they are.

    Args:
        overrides: `KEY=VALUE`, with `+`, `++` or `~` before the key where the user wrote it.
        multirun: whether commas separate the values of a sweep.
    """
    return [_readable(word, multirun) for word in overrides]


def _readable(word: str, multirun: bool) -> str:
    key, equals, value = word.partition("=")
    if not equals or _is_read("override", word) or not _is_read("override", f"{key}=x"):
        return word
    several = _parts(value) if multirun else None
    if several is None or len(several) == 1:
        return f"{key}={_element(value)}"
    return f"{key}={','.join(map(_element, several))}"


def _element(text: str) -> str:
    """A value, or one of several, in Hydra's grammar."""
    if _is_read("element", text):
        return text
    stripped = text.strip()
    if stripped[:1] in ("[", "{") and stripped[-1] == _CLOSING[stripped[0]]:
        parts = _parts(stripped[1:-1])
        if parts is not None:
            entries = _pairs(parts) if stripped[0] == "{" else (_element(part.strip()) or "''" for part in parts)
            made = f"{stripped[0]}{','.join(entries)}{stripped[-1]}"
            if _is_read("element", made):
                return made
    return quoted(text)


def _pairs(parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        key, colon, value = part.partition(":")
        yield f"{key}{colon}{_element(value.strip())}" if colon else part


def quoted(text: str) -> str:
    """A text as Hydra's grammar has it in quotes; interpolations in it stay ones."""
    try:
        grammar_parser.parse(text)
    except GrammarParseError:  # a brace that is never closed: no interpolation
        text = text.replace("${", r"\${")
    return QuotedString(text, Quote.single).with_quotes()


def _parts(text: str) -> list[str] | None:
    """A text cut at the commas outside brackets and quotes; None where brackets do not match.

    A quote counts as one at the beginning of a part, where another stands at its end: `it's` has none.
    """
    parts, begin, place, open_brackets = [], 0, 0, [""]
    while place < len(text):
        letter = text[place]
        fresh = not text[begin:place].strip()
        if letter in "'\"" and (fresh or text[:place].rstrip()[-1:] in ("[", "{", "(", ",", ":")):
            whole = re.compile(rf"{letter}(?:\\.|[^\\{letter}])*{letter}(?=\s*(?:[\]}}),:]|$))", re.DOTALL)
            match = whole.match(text, place)
            place = match.end() if match else place + 1
            continue
        if letter in _CLOSING:
            open_brackets.append(_CLOSING[letter])
        elif letter in _CLOSING.values() and letter != open_brackets.pop():
            return None
        elif letter == "," and len(open_brackets) == 1:
            parts.append(text[begin:place])
            begin = place + 1
        place += 1
    return [*parts, text[begin:]] if len(open_brackets) == 1 else None


def _is_read(rule: str, text: str) -> bool:
    """Whether Hydra's grammar reads a whole text by one of its rules (`override`, `element`)."""
    try:
        if rule == "element":
            return not OverridesParser.create().parse_override(f"x={text}").is_sweep_override()
        OverridesParser.create().parse_override(text)
    except HydraException:
        return False
    return True
