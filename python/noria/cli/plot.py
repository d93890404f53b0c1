"""A picture of a trace: one row per stream, one bar per copy and per group in use. Needs the plot extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Slice = tuple[str, str, float, float]
"""Name, row, begin and end in seconds."""

_COLOURS = {"compute": "#4c72b0", "copy in": "#dd8452", "copy out": "#55a868"}


def require() -> None:
    """Raises RuntimeError, which says what to install, when matplotlib is not there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RuntimeError("--plot draws with matplotlib, which is not installed: pip install 'noria[plot]'") from None


def plot(path: Path, slices: Sequence[Slice], title: str) -> None:
    """Draws the slices; the ending of `path` says how (.png, .svg, .pdf).

    Raises:
        RuntimeError: matplotlib is not installed.
        ValueError: matplotlib does not know the ending.
    """
    require()
    from matplotlib.figure import Figure

    rows = [row for row in ("copy in", "compute", "copy out") if any(each[1] == row for each in slices)]
    figure = Figure(figsize=(12, 1.2 + 0.7 * max(len(rows), 1)))
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        bars = [(1e3 * begin, 1e3 * (end - begin)) for _, kind, begin, end in slices if kind == row]
        axes.broken_barh(bars, (index - 0.35, 0.7), facecolors=_COLOURS[row], edgecolor="white", linewidth=0.4)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(title, loc="left")
    figure.tight_layout()
    figure.savefig(path)
