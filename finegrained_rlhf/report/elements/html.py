"""HTML as a value: whatever comes from data is escaped when it enters, so that no page can forget to."""

from __future__ import annotations

import html
from typing import Any

from finegrained_rlhf.core.checks import is_number

_VOID = {"br", "col", "hr", "input", "meta"}
# Controls are shown by their pictures (␀ for NUL); tab and line feed do what they are for. C1 controls and halves of
# surrogate pairs, which UTF-8 cannot write, become U+FFFD. One character for one, so that offsets stay what they are.
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
MINUS = "\N{MINUS SIGN}"


class Html(str):
    """Text that is HTML already; any other string is escaped where it is put into a page."""

    def __html__(self) -> str:
        """What a template engine asks: no escaping needed."""
        return self


def escape(value: Any) -> Html:
    """`value` as HTML text, good for element content and quoted attributes; Html stays as it is."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(str(value).translate(_VISIBLE), quote=True))


def join(*parts: Any) -> Html:
    """The parts one after the other, escaped where they are not HTML; None adds nothing."""
    return Html("".join(escape(part) for part in parts if part is not None))


def el(tag: str, *children: Any, **attributes: Any) -> Html:
    """One element.

    Args:
        tag: its name.
        children: content; escaped unless it is Html; None adds nothing.
        attributes: `class_` is `class`, `data_x` is `data-x`; None and False leave an attribute out, True stands alone.
    """
    words = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f'{name}="{escape(value)}"')
    start = f"<{' '.join(words)}>"
    return Html(start if tag in _VOID else f"{start}{join(*children)}</{tag}>")


def isolated(value: Any) -> Html:
    """Text of unknown writing direction, kept from turning what stands beside it."""
    return el("bdi", value)


def number(value: Any, digits: int = 3) -> str:
    """A number as the page shows it: up to `digits` decimals, thousands apart, a true minus; a dash for no number."""
    if not is_number(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        shown = f"{value:,.0f}"
    elif abs(value) >= 100:
        shown = f"{value:.1f}"
    else:
        shown = f"{value:.{digits}f}"
        if float(shown) == 0:  # a zero has no sign
            shown = f"{value:.1e}" if abs(value) >= 1e-6 else f"{0.0:.{digits}f}"
    return shown.replace("-", MINUS)


def signed(value: float, digits: int = 2, *, trim: bool = True) -> str:
    """A number with its sign in front: +1, −0.5, 0; all `digits` decimals where it is not trimmed."""
    shown = f"{value:+.{digits}f}"
    if float(shown) == 0:
        return "0" if trim else shown[1:]
    return (shown.rstrip("0").rstrip(".") if trim else shown).replace("-", MINUS)
