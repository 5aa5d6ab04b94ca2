"""Plots as SVG that takes its colours from the page it stands in: light, dark or printed."""

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Colours that stand for the page's own. No plot may use them for anything else.
_INK, _MUTED, _LINE, _FIRST, _SECOND = "#010101", "#020202", "#030303", "#040404", "#050505"
_COLOURS = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _LINE: "var(--line)",
    _FIRST: "var(--accent)",
    _SECOND: "var(--accent-2)",
}
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "embedmill",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "xtick.color": _LINE,
    "ytick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}
_SIZE = (4.4, 2.7)  # inches of 72 px: a third of a wide page, the whole of a narrow one
_COUNT = FuncFormatter(lambda value, _: f"{value:,.10g}")
_PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.6g} %")

ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)


def area(
    name: str,
    edges: ArrayLike,
    heights: ArrayLike,
    *,
    x: str,
    y: str,
    first: bool = True,
) -> str:
    """Heights [M] between edges [M + 1]: a histogram, or something over time."""

    def draw(axes: Axes) -> None:
        colour = _FIRST if first else _SECOND
        axes.stairs(heights, edges, fill=True, color=colour, alpha=0.28)
        axes.stairs(heights, edges, color=colour, linewidth=1.4)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)

    return _plot(name, draw, x=x, y=y)


def line(name: str, values: Sequence[float], *, x: str, y: str) -> str:
    """Shares by rank, the first is 1; both axes are logarithmic."""

    def draw(axes: Axes) -> None:
        axes.plot(range(1, len(values) + 1), values, color=_FIRST)
        axes.set_yscale("log")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_COUNT)
        axes.yaxis.set_major_locator(FixedLocator(_decimal_steps(min(values), max(values))))
        axes.yaxis.set_major_formatter(_PERCENT)
        axes.minorticks_off()

    return _plot(name, draw, x=x, y=y, linear=False)


def bars(
    name: str, labels: Sequence[str], values: Sequence[float], *, x: str, second: Sequence[int] = ()
) -> str:
    """Lying bars, the first on top; those whose places are in `second` have the other colour."""

    def draw(axes: Axes) -> None:
        colours = [_SECOND if place in second else _FIRST for place in range(len(labels))]
        axes.barh(range(len(labels)), values, color=colours, height=0.66)
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0, labelcolor=_INK)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=max(values) > 1))
        axes.xaxis.set_major_formatter(_COUNT)
        axes.set_xlim(0, 1.05 * max([*values, 1e-9]))

    height = max(_SIZE[1], 0.9 + 0.24 * len(labels))
    return _plot(name, draw, x=x, y="", linear=False, height=height)


def bubbles(
    name: str, across: Sequence[int], down: Sequence[int], counts: Sequence[int], *, x: str, y: str
) -> str:
    """Circles whose areas are the counts, on axes where each step doubles."""

    def draw(axes: Axes) -> None:
        largest = max([*counts, 1])
        sizes = [max(3.0, 260.0 * count / largest) for count in counts]
        axes.scatter(across, down, s=sizes, color=_FIRST, alpha=0.45, linewidths=0)
        for axis, places in ((axes.xaxis, across), (axes.yaxis, down)):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            axis.set_major_locator(FixedLocator(_binary_steps(min(places), max(places))))
            axis.set_major_formatter(_COUNT)
        axes.minorticks_off()

    return _plot(name, draw, x=x, y=y, linear=False)


def _decimal_steps(low: float, high: float) -> list[float]:
    """Powers of ten; between them 2 and 5 where there would be few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    within = (1, 2, 5) if last - first <= 3 else (1,)
    return [factor * 10.0**power for power in range(first, last + 1) for factor in within]


def _binary_steps(low: int, high: int) -> list[float]:
    """Powers of two; between them the one and a half fold where there would be few."""
    within = (1, 1.5) if high < 8 * low else (1,)
    return [factor * 2.0**power for power in range(high.bit_length() + 1) for factor in within]


def _plot(
    name: str,
    draw: Callable[[Axes], None],
    *,
    x: str,
    y: str,
    linear: bool = True,
    height: float = _SIZE[1],
) -> str:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_SIZE[0], height), dpi=72)
        axes = figure.add_subplot()
        draw(axes)
        if linear:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.xaxis.set_major_formatter(_COUNT)
            axes.yaxis.set_major_formatter(_COUNT)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        buffer = io.BytesIO()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return _inlined(buffer.getvalue().decode(), name, f"{y or 'bars'} by {x}")


def _inlined(text: str, name: str, label: str) -> str:
    """The SVG as a part of a page: ids of its own, the page's colours and fonts."""
    root = ElementTree.fromstring(text)
    for unwanted in (f"{{{_SVG}}}metadata", f".//{{{_SVG}}}style/.."):
        for element in root.findall(unwanted):
            root.remove(element)
    for attribute in ("width", "height"):
        del root.attrib[attribute]
    root.set("role", "img")
    root.set("aria-label", label)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _adapted(key, value, name))
    return ElementTree.tostring(root, encoding="unicode")


def _adapted(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{name}-")
    value = value.replace("url(#", f"url(#{name}-")
    value = re.sub(r"font-family: [^;]*;?", "", value)
    for standing, colour in _COLOURS.items():
        value = value.replace(standing, colour)
    return value
