"""Draws records as SVG, readable on a light and on a dark page; needs matplotlib, which only this imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.record import GoalLine, Panel, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Mid-tones: at least 3:1 against white and against a page of #0d1117.
_INK, _GOAL = "#7d8590", "#d1495b"
_COLOURS = ("#2f81f7", "#d08700", "#2da44e", "#a371f7", "#db61a2", "#39a0a8")
_PANEL_INCHES = (4.6, 3.1)
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lockstep",  # the same figures, the same file
    "svg.fonttype": "none",  # texts stay texts: a fifth of the size
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}


def draw(record: Record, folder: Path) -> Path:
    """Write a record's panels, side by side, as <date>-<benchmark>.svg."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        width, height = _PANEL_INCHES
        figure = Figure(figsize=(width * len(record.panels), height), layout="constrained")
        axes = figure.subplots(1, len(record.panels), squeeze=False)[0]
        for panel, axis in zip(record.panels, axes, strict=True):
            _draw_panel(panel, axis)
        path = folder / f"{record.file_name}.svg"
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    return path


def _draw_panel(panel: Panel, axis: Axes) -> None:
    if panel.kind == "bars":
        _draw_bars(panel, axis)
    else:
        _draw_curves(panel, axis)
    for goal, dashes in zip(panel.goals, ("--", ":", "-."), strict=False):
        _draw_goal(goal, dashes, axis)
    axis.set_title(panel.title)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.05)
    axis.grid(visible=True, color=_INK, alpha=0.2, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize=8)


def _draw_curves(panel: Panel, axis: Axes) -> None:
    is_sweep = panel.kind == "sweep"
    for series, colour in zip(panel.series, _COLOURS, strict=False):
        axis.plot(series.x, series.y, color=colour, label=series.name, marker="o" if is_sweep else "", markersize=4)
    if is_sweep:
        axis.set_xscale("log")
        counts = [int(count) for count in panel.series[0].x]
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.minorticks_off()
    else:
        axis.set_xlim(left=0)


def _draw_bars(panel: Panel, axis: Axes) -> None:
    """Series on top of each other: they are parts of a whole."""
    labels = panel.series[0].labels
    bottom = [0.0] * len(labels)
    for series, colour in zip(panel.series, _COLOURS, strict=False):
        axis.bar(range(len(labels)), series.y, bottom=bottom, width=0.5, color=colour, label=series.name)
        bottom = [below + value for below, value in zip(bottom, series.y, strict=True)]
    axis.set_xticks(range(len(labels)), labels)
    _name_tops(axis, bottom)


def _name_tops(axis: Axes, tops: Sequence[float]) -> None:
    for place, top in enumerate(tops):
        axis.annotate(f"{top:.3g}", (place, top), ha="center", va="bottom", fontsize=8)


def _draw_goal(goal: GoalLine, dashes: str, axis: Axes) -> None:
    line = axis.axhline if goal.axis == "y" else axis.axvline
    line(goal.at, color=_GOAL, linestyle=dashes, linewidth=1, label=goal.label)
