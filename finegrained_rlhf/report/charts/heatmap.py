"""Responses as heat maps: the text coloured by a component's segments, or by one number of its tokens.

The reader chooses what colours the text; the choice needs no script. Texts are cut at the ends of their tokens and of
their segments, in Unicode code points, as everywhere in the project.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from finegrained_rlhf.report.elements.html import Html, el, isolated, join, signed
from finegrained_rlhf.report.elements.page import list_tools, sort_values
from finegrained_rlhf.runtime.directory.samples import OracleMark, SampleRecord, SampleSegment

LEVELS = 5
"""Shades of each sign."""
LAYERS = 16
"""Choices that the style sheet knows; a reward of more components than that is cut off."""
_FSI, _PDI = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
# Numbers of a token, in the order in which they are shown.
_NAMES = {"advantage": "advantage", "reward": "token reward", "value": "value", "kl": "KL"}
_SHARES = {"kl": "KL"}


@dataclass(frozen=True)
class Piece:
    """A stretch of text in which nothing changes: inside one token and one segment of each component.

    Attributes:
        start: first character.
        end: one past the last; equals `start` for tokens without characters at the end of the text.
        tokens: the token it lies in, after tokens without characters that come right before it.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def cut(text: str, segments: Sequence[SampleSegment | OracleMark], ends: Sequence[int] = ()) -> list[Piece]:
    """Cut a text where a token, a segment or an oracle's mark ends. The pieces cover the text once, in order.

    Args:
        text: a response.
        segments: of any components, and marks.
        ends: where each token ends; tokens without characters at the end of the text make a last, empty piece.
    """
    points = {0, len(text), *(end for end in ends if end <= len(text))}
    points |= {point for segment in segments for point in (segment.start, segment.end)}
    borders = sorted(points)
    pieces: list[Piece] = []
    shown = 0  # tokens that are over and shown
    for start, end in zip(borders, borders[1:], strict=False):
        token = bisect_right(ends, start)
        pieces.append(Piece(start, end, tuple(range(shown, min(token + 1, len(ends))))))
        shown = token + 1 if token < len(ends) and ends[token] == end else token
    if shown < len(ends):
        pieces.append(Piece(len(text), len(text), tuple(range(shown, len(ends)))))
    return pieces


@dataclass(frozen=True)
class Group:
    """Responses to one prompt, side by side.

    Attributes:
        prompt: its text.
        cells: a heading and a response each; None where there is none.
        references: what people answered; may be empty.
        shown: the response that the group is ordered and filtered by; None keeps its place.
    """

    prompt: str
    cells: Sequence[tuple[str, SampleRecord | None]]
    references: Sequence[str] = ()
    shown: SampleRecord | None = None


@dataclass(frozen=True)
class _Layer:
    """One choice.

    Attributes:
        name: component or quantity.
        scale: the absolute value from which on the shade is the strongest.
        beyond: some values are larger than that.
        by_token: it colours tokens, not segments.
        share: it is the share of `name` in the advantage.
    """

    name: str
    scale: float
    beyond: bool
    by_token: bool
    share: bool = False

    @property
    def ends(self) -> tuple[tuple[str, float], tuple[str, float]]:
        """Both ends of the scale, and how values beyond stand to them."""
        return ("≤", -self.scale), ("≥", self.scale)

    def level(self, value: float) -> int:
        """Shade from −LEVELS to LEVELS; 0 for values close to 0."""
        return max(-LEVELS, min(LEVELS, round(LEVELS * value / self.scale)))


def heat_style() -> str:
    """The rules by which a chosen layer colours its pieces and shows the values at its segments' ends."""
    rules = []
    for k in range(LAYERS):
        chosen = f".l{k}:checked~"
        rules.append(f"{chosen}.tabs .t{k}{{background:var(--ink);color:var(--paper);border-color:var(--ink)}}")
        rules.append(f".l{k}:focus-visible~.tabs .t{k}{{outline:2px solid var(--link);outline-offset:2px}}")
        rules.append(f"{chosen}.body .e{k}{{display:inline-block}}{chosen}.scale .r{k}{{display:inline}}")
        for level in range(1, LEVELS + 1):
            rules.append(f"{chosen}.body .k{k}p{level}{{background:var(--p{level})}}")
            rules.append(f"{chosen}.body .k{k}m{level}{{background:var(--m{level})}}")
    return "\n".join(rules)


def heat_panel(
    name: str, groups: Sequence[Group], components: Sequence[str], *, shown: int = 4, tools: bool = True
) -> Html:
    """Groups of responses under one choice of what colours them.

    Args:
        name: unique on the page.
        groups: one a prompt.
        components: which may be chosen.
        shown: so many groups are open; the rest unfolds.
        tools: offer search, order and filter.
    """
    responses = [response for group in groups for _, response in group.cells if response is not None]
    layers = _layers(responses, components)
    inputs = [
        el("input", type="radio", name=name, id=f"{name}-{k}", class_=f"l{k} pick", checked=k == 0)
        for k in range(len(layers))
    ]
    labels = [el("label", layer_name(x), for_=f"{name}-{k}", class_=f"t{k}") for k, x in enumerate(layers)]
    tabs = el("div", el("span", "Colour by", class_="say"), *labels, class_="tabs")
    drawn = [_group(group, components, layers) for group in groups]
    rest = el("details", el("summary", f"{len(drawn) - shown} more"), *drawn[shown:]) if len(drawn) > shown else None
    body = el("div", *drawn[:shown], rest, class_="body")
    controls = list_tools(name, components) if tools and len(groups) > 1 else None
    return el("div", *inputs, tabs, _legend(layers), controls, body, class_="heat list", data_open=shown)


def layer_name(layer: _Layer) -> str:
    """What the choice is called."""
    if layer.share:
        return f"advantage from {_SHARES.get(layer.name, layer.name)}"
    return _NAMES[layer.name] if layer.by_token else layer.name


def _layers(responses: Sequence[SampleRecord], components: Sequence[str]) -> list[_Layer]:
    layers = []
    for component in components:
        values = [abs(s.raw) for r in responses for s in r.segments if s.component == component]
        layers.append(_Layer(component, max(values, default=0.0) or 1.0, beyond=False, by_token=False))
    with_tokens = [r.tokens for r in responses if r.tokens]
    for quantity in _NAMES:
        if values := [abs(v) for tokens in with_tokens for v in tokens.numbers.get(quantity, ())]:
            layers.append(_Layer(quantity, *_scale(values), by_token=True))
    shares = list(dict.fromkeys(name for tokens in with_tokens for name in tokens.shares))
    every = [abs(v) for tokens in with_tokens for values in tokens.shares.values() for v in values]
    if every:  # one scale, so that the shades of two shares can be compared
        layers += [_Layer(name, *_scale(every), by_token=True, share=True) for name in shares]
    return layers[:LAYERS]


def _scale(values: Sequence[float]) -> tuple[float, bool]:
    """The scale of absolute values, and whether some lie beyond: a few outliers would make everything else pale."""
    ordered = sorted(values)
    scale = ordered[int(0.95 * (len(ordered) - 1))] or ordered[-1] or 1.0
    return scale, scale < ordered[-1]


def _legend(layers: Sequence[_Layer]) -> Html:
    """The scale of the chosen layer: from its lowest to its highest shade."""
    steps = [*(f"m{i}" for i in range(LEVELS, 0, -1)), "zero", *(f"p{i}" for i in range(1, LEVELS + 1))]
    ends = [
        tuple(
            el("b", f"{relation} {signed(end)}" if x.beyond else signed(end), class_=f"r{k}")
            for relation, end in x.ends
        )
        for k, x in enumerate(layers)
    ]
    bar = el("span", *(el("i", class_=f"w{step}") for step in steps), class_="ramp", aria_hidden="true")
    return el("div", *(low for low, _ in ends), bar, *(high for _, high in ends), class_="scale")


def _group(group: Group, components: Sequence[str], layers: Sequence[_Layer]) -> Html:
    cells = [
        el("div", el("h4", heading), el("p", "No answer kept.", class_="none") if r is None else _cell(r, layers))
        for heading, r in group.cells
    ]
    short = group.prompt if len(group.prompt) <= 160 else group.prompt[:150].rstrip() + " …"
    prompt = isolated(group.prompt)
    if short != group.prompt:
        prompt = el("details", el("summary", isolated(short)), el("p", group.prompt, dir="auto", class_="full"))
    reference = [el("p", el("b", "reference "), isolated(text), class_="reference") for text in group.references[:1]]
    shown = el("div", prompt, class_="prompt"), *reference, el("div", *cells, class_="cells")
    return el("article", *shown, **sort_values(group.shown, components))


def _cell(response: SampleRecord, layers: Sequence[_Layer]) -> Html:
    ends = response.tokens.ends if response.tokens else ()
    pieces = cut(response.text, [*response.segments, *(response.marks or ())], ends)
    last_end = max((segment.end for segment in response.segments), default=0)
    parts: list[Html] = []
    for piece in pieces:
        parts.append(_piece(response, piece, layers))
        parts += [_value(s, layers) for s in response.segments if s.end == piece.end and piece.start < s.end]
    if not response.text and last_end == 0:
        parts = [el("span", "(empty)", class_="none"), *parts, *(_value(s, layers) for s in response.segments)]
    text = el("p", *parts, class_="text", dir="auto", tabindex=0 if response.tokens else None)
    sums = [
        el("span", el("bdi", layer.name), " ", el("b", sum_of(response, layer.name)))
        for layer in layers
        if not layer.by_token
    ]
    total = el("span", "weighted total ", el("b", signed(response.total)))
    return join(text, el("p", *sums, total, _oracle(response), class_="sums"))


def sum_of(response: SampleRecord, component: str) -> str:
    """The sum of a component's raw values, or that it has no score of the response."""
    return "no score" if component in response.unscored else signed(response.totals(component)[0])


def _oracle(response: SampleRecord) -> Html | None:
    """How many errors an oracle marked; nothing where none was asked."""
    if response.marks is None:
        return None
    count = len(response.marks)
    return el("span", "oracle ", el("b", f"{count} error{'s' * (count != 1)}" if count else "no error"))


def _piece(response: SampleRecord, piece: Piece, layers: Sequence[_Layer]) -> Html:
    over = [s for s in response.segments if s.start <= piece.start and piece.end <= s.end and piece.start < piece.end]
    classes = []
    for k, layer in enumerate(layers):
        value = _value_of(response, piece, over, layer)
        level = layer.level(value) if value is not None else 0
        if level:
            classes.append(f"k{k}{'p' if level > 0 else 'm'}{abs(level)}")
    marks = [m for m in response.marks or () if m.start <= piece.start < piece.end <= m.end]
    if marks:
        classes.append("wrong")
    text = response.text[piece.start : piece.end]
    if piece.start == piece.end:
        classes.append("end")
        text = "end"
    lines = [*_token_lines(response, piece), *(_segment_line(response, segment) for segment in over)]
    lines += [f"oracle: {_FSI}{mark.label}{_PDI}" for mark in marks]
    return el("span", text, class_=" ".join(["w", *classes]), title="\n".join(lines) or None)


def _value_of(response: SampleRecord, piece: Piece, over: Sequence[SampleSegment], layer: _Layer) -> float | None:
    if layer.by_token:
        if response.tokens is None or not piece.tokens:
            return None
        numbers = (response.tokens.shares if layer.share else response.tokens.numbers).get(layer.name)
        return None if numbers is None else numbers[piece.tokens[-1]]
    return next((segment.raw for segment in over if segment.component == layer.name), None)


def _token_lines(response: SampleRecord, piece: Piece) -> list[str]:
    """Number, text and quantities of the tokens of a piece."""
    if response.tokens is None:
        return []
    lines = []
    for token in piece.tokens:
        start = response.tokens.ends[token - 1] if token else 0
        text = response.text[start : response.tokens.ends[token]].strip() or "no characters"
        numbers = response.tokens.numbers
        quantities = [f"{word} {signed(numbers[name][token], 3)}" for name, word in _NAMES.items() if name in numbers]
        lines += [f"token {token + 1}: {_FSI}{text}{_PDI}", ", ".join(quantities)]
        lines += [
            f"{_FSI}{name}{_PDI} corrected here by {signed(paid, 3)}"
            for name, pairs in response.corrections.items()
            for at, paid in pairs
            if at == token and paid
        ]
    return lines


def _segment_line(response: SampleRecord, segment: SampleSegment) -> str:
    raw, weighted = signed(segment.raw, 3), signed(segment.weighted, 3)
    return f"{_FSI}{segment.component}{_PDI} {raw}, weighted {weighted}{_paid_behind(response, segment)}"


def _paid_behind(response: SampleRecord, segment: SampleSegment) -> str:
    """Which token carries a segment's value, where it stands behind the segment's end; nothing of a whole response."""
    whole = (segment.start, segment.end) == (0, len(response.text))
    if segment.token is None or response.tokens is None or whole or segment.component in response.corrections:
        return ""
    behind = segment.token > bisect_left(response.tokens.ends, segment.end)
    return f", paid at token {segment.token + 1}" if behind else ""


def _value(segment: SampleSegment, layers: Sequence[_Layer]) -> Html:
    """The value of a segment, at its end; shown while its component is chosen."""
    for k, layer in enumerate(layers):
        if layer.name == segment.component and not layer.by_token:
            sign = "neg" if segment.raw < 0 else "pos"
            return el("bdi", signed(segment.raw), class_=f"e e{k} {sign}")
    return Html("")
