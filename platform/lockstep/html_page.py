"""One self-contained HTML page of figures: a verdict, facts, tables and charts as inline SVG.

Nothing is fetched, no script runs; it follows the light or dark setting of the reader and fits a phone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from itertools import chain
from pathlib import Path

import jinja2
import msgspec


class Fact(msgspec.Struct, frozen=True):
    """A name and its value."""

    name: str
    value: str


class TableOf(msgspec.Struct, frozen=True):
    """A table of text.

    Attributes:
        columns: Names of the columns.
        rows: The cells of each row.
        marks: Class of each row, by its number: "good" or "bad".
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marks: dict[int, str] = {}


class Section(msgspec.Struct, frozen=True):
    """A part of a page.

    Attributes:
        title: Its title.
        tables: Its tables.
        charts: Its charts, from `draw_lines` and `draw_bars`.
        note: A paragraph above them.
    """

    title: str
    tables: Sequence[TableOf] = ()
    charts: Sequence[str] = ()
    note: str = ""


class Page(msgspec.Struct, frozen=True):
    """A page.

    Attributes:
        title: Its title.
        verdict: The result in one sentence.
        is_good: Whether the verdict is good for the reader.
        facts: Names and values below the verdict.
        sections: Its parts.
    """

    title: str
    verdict: str
    is_good: bool
    facts: Sequence[Fact]
    sections: Sequence[Section]


class Line(msgspec.Struct, frozen=True):
    """A line of a chart.

    Attributes:
        name: Its name in the legend.
        points: (x, y), by x.
    """

    name: str
    points: Sequence[tuple[float, float]]


class Bar(msgspec.Struct, frozen=True):
    """A bar of a chart.

    Attributes:
        name: Its label.
        value: Its length.
        text: The value as shown.
    """

    name: str
    value: float
    text: str


_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ page.title }}</title>
<style>
:root { --ink: #1c2430; --dim: #5b6675; --paper: #ffffff; --line: #d9dee5; --good: #1a7f4b; --bad: #b3261e;
  --c0: #2463b8; --c1: #c2571a; --c2: #1a7f4b; --c3: #7a3fb0; --c4: #8a6d00; --c5: #a8326b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #9aa5b4; --paper: #14181e; --line: #303843;
  --good: #58c48c; --bad: #ff8a80; --c0: #7fb0f5; --c1: #f5a26b; --c2: #6fd3a0; --c3: #c39af0; --c4: #dcc163;
  --c5: #f090bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.1rem; border-left: .3rem solid var(--bad); padding: .3rem .8rem; margin: .8rem 0; }
.verdict.good { border-color: var(--good); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt, .dim, footer { color: var(--dim); } dd { margin: 0; }
.wide { overflow-x: auto; background-repeat: no-repeat; background-size: 2rem 100%, 2rem 100%, .6rem 100%, .6rem 100%;
  background-position: left, right, left, right; background-attachment: local, local, scroll, scroll;
  background-image: linear-gradient(90deg, var(--paper) 30%, transparent),
    linear-gradient(270deg, var(--paper) 30%, transparent), linear-gradient(90deg, var(--line), transparent),
    linear-gradient(270deg, var(--line), transparent); } /* a shadow at a side that can be scrolled to */
.wide + .wide { margin-top: 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; white-space: nowrap; } td { min-width: 3rem; } td.long { min-width: 18rem; }
tr.good td:first-child { box-shadow: inset .25rem 0 var(--good); padding-left: .6rem; }
tr.bad td:first-child { box-shadow: inset .25rem 0 var(--bad); padding-left: .6rem; }
svg { width: 100%; min-width: 34rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .dim { fill: var(--dim); } svg .grid { stroke: var(--line); } footer { margin-top: 3rem; font-size: .85rem; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
</style>
</head>
<body>
<h1>{{ page.title }}</h1>
<p class="verdict{{ ' good' if page.is_good }}">{{ page.verdict }}</p>
<dl>{% for fact in page.facts %}<dt>{{ fact.name }}</dt><dd>{{ fact.value }}</dd>{% endfor %}</dl>
{% for section in page.sections %}
<section>
<h2>{{ section.title }}</h2>
{% if section.note %}<p>{{ section.note }}</p>{% endif %}
{% for table in section.tables %}
<div class="wide"><table>
<thead><tr>{% for name in table.columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table.rows %}
<tr class="{{ table.marks.get(loop.index0, '') }}">{% for cell in row %}
<td{% if cell|length > long %} class="long"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}</tbody>
</table></div>
{% endfor %}
{% for chart in section.charts %}<div class="wide">{{ chart|safe }}</div>{% endfor %}
</section>
{% endfor %}
<footer>lockstep, {{ made_at }} UTC</footer>
</body>
</html>
"""

WIDTH = 800
HEIGHT = 260
LEFT = 80
BOTTOM = 40
TOP = 26
BAR_HEIGHT = 24
BAR_LEFT = 190
BAR_RIGHT = 90
LEGEND_GAP = 40
LEGEND_HEIGHT = 20
LETTER_WIDTH = 7
COLORS = 6
TICKS = 4
LONG = 40
"""Letters from which on a cell has lines of several words also on a phone, whose reader scrolls the table instead."""


def check_page_path(path: Path) -> None:
    """Check that a page can be written there, before its content is made: by opening the file.

    Raises:
        OSError: It cannot, and why.
    """
    existed = path.exists()
    with path.open("ab"):
        pass
    if not existed:
        path.unlink()


def render_page(page: Page) -> str:
    """The page as HTML; all text of it is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=_make_visible
    )
    made_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    return environment.from_string(_FRAME).render(page=page, made_at=made_at, long=LONG)


def _make_visible(value: object) -> object:
    """A text with the characters as codes that HTML does not hold, such as NUL, or that turn others around."""
    if not isinstance(value, str) or value.isprintable() or hasattr(value, "__html__"):
        return value
    return "".join(_make_letter_visible(letter) for letter in value)


def _make_letter_visible(letter: str) -> str:
    if letter.isprintable() or letter == "\n":
        return letter
    return ascii(letter)[1:-1]


def _escape(text: str) -> str:
    return escape(str(_make_visible(text)))


def draw_lines(lines: Sequence[Line], *, x_label: str, y_label: str) -> str:
    """A chart of lines, as SVG."""
    points = list(chain.from_iterable(line.points for line in lines))
    x_max = _round_up(max((x for x, _ in points), default=0.0))
    y_max = _round_up(max((y for _, y in points), default=0.0))
    legend = _place_legend([line.name for line in lines])
    top = TOP + LEGEND_HEIGHT * max((row for row, _ in legend), default=0)
    height = HEIGHT - TOP + top
    bottom = height - BOTTOM
    wide = WIDTH - LEFT - 20
    high = height - BOTTOM - top
    parts = [_open_svg(height, f"{', '.join(line.name for line in lines) or y_label} over {x_label}")]
    for tick in range(TICKS + 1):
        y = bottom - high * tick / TICKS
        x = LEFT + wide * tick / TICKS
        x_text = _number(x_max * tick / TICKS)
        y_text = _number(y_max * tick / TICKS)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + wide}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="dim" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{y_text}</text>')
        parts.append(f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{x_text}</text>')
    for number, (line, (row, legend_x)) in enumerate(zip(lines, legend, strict=True)):
        path = " ".join(f"{LEFT + wide * x / x_max:.1f},{bottom - high * y / y_max:.1f}" for x, y in line.points)
        color = f"var(--c{number % COLORS})"
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = 6 + LEGEND_HEIGHT * row
        parts.append(f'<rect x="{legend_x}" y="{y}" width="12" height="12" style="fill:{color}"/>')
        parts.append(f'<text x="{legend_x + 18}" y="{y + 10}">{_escape(line.name)}</text>')
    parts.append(
        f'<text class="dim" x="{LEFT + wide / 2}" y="{height - 6}" text-anchor="middle">{_escape(x_label)}</text>'
    )
    return "".join([*parts, "</svg>"])


def _place_legend(names: Sequence[str]) -> list[tuple[int, int]]:
    """The row and x of each name: a name that does not fit into its row starts the next."""
    places = list[tuple[int, int]]()
    row = 0
    x = LEFT
    for name in names:
        width = LEGEND_GAP + LETTER_WIDTH * len(name)
        if x > LEFT and x + width > WIDTH:
            row = row + 1
            x = LEFT
        places.append((row, x))
        x += width
    return places


def draw_bars(bars: Sequence[Bar], unit: str) -> str:
    """A chart of horizontal bars, as SVG.

    Args:
        bars: The bars, from top to bottom.
        unit: Unit of all values.
    """
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    wide = WIDTH - BAR_LEFT - BAR_RIGHT
    parts = [_open_svg(BAR_HEIGHT * len(bars) + 8, unit)]
    for number, bar in enumerate(bars):
        y = number * BAR_HEIGHT + 4
        length = max(1.0, wide * bar.value / longest)
        parts.append(f'<text x="{BAR_LEFT - 8}" y="{y + 15}" text-anchor="end">{_escape(bar.name)}</text>')
        parts.append(
            f'<rect x="{BAR_LEFT}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT - 6}" style="fill:var(--c0)"/>'
        )
        parts.append(f'<text x="{BAR_LEFT + length + 8:.1f}" y="{y + 15}">{_escape(bar.text)}</text>')
    return "".join([*parts, "</svg>"])


def _open_svg(height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_escape(label)}">'


_STEPS = (1, 1.2, 1.6, 2, 2.4, 2.8, 3.2, 3.6, 4, 4.8, 6, 8, 10)


def _round_up(value: float) -> float:
    """The next round number that four ticks divide into round numbers."""
    scale = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * scale for step in _STEPS if step * scale >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"  # noqa: PLR2004  # two digits
