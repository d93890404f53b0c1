"""What long work is doing: on a terminal a line that changes, in a pipe nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from noria import _C


class _Bytes(ProgressColumn):
    """Bytes that have come, of those that will."""

    def render(self, task: Task) -> Text:
        count = task.fields.get("count")
        if count is None:
            return Text("")
        done = count()
        task.completed = min(done, task.total or done)  # for the bar beside it
        return Text(f"{_C.format_bytes(done)} of {_C.format_bytes(int(task.total or 0))} read")


@contextmanager
def doing(what: str, total: int = 0, count: Callable[[], int] | None = None) -> Iterator[None]:
    """Shows `what` on standard error while the body runs, when that is a terminal.

    Args:
        what: a few words.
        total: bytes that will come.
        count: how many have; called from another thread.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    bar = [BarColumn()] if count is not None and total > 0 else []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *bar, _Bytes(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=total or None, count=count if total > 0 else None)
        yield
