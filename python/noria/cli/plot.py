"""A picture of a trace: one row per stream, one bar per copy and per group in use. Needs the plot extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from noria.cli.values import UsageError

Slice = tuple[str, str, float, float]
"""Name, row, begin and end in seconds."""

_COLOURS = {"compute": "#4c72b0", "copy in": "#dd8452", "copy out": "#55a868"}


def require(path: Path) -> None:
    """Says before the work whether it can be drawn to `path`.

    Raises:
        RuntimeError: matplotlib is not installed.
        UsageError: matplotlib does not know the ending.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise RuntimeError("--plot draws with matplotlib, which is not installed: pip install 'noria[plot]'") from None
    endings = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise UsageError(f"--plot cannot draw {str(path)!r}; the endings it knows are {', '.join(endings)}")


def plot(path: Path, slices: Sequence[Slice], title: str) -> None:
    """Draws the slices to a `path` that `require` accepts; its ending says how (.png, .svg, .pdf)."""
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
