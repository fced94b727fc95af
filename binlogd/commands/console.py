"""What a person sees on a terminal: a bar while something is read, compared or exported."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from binlogd.snapshot.spec import Progress as ExportStep
from binlogd.tools.transaction import Meter


class _Live:
    """A bar that is shown while a `with` lasts; nothing where nobody looks."""

    def __init__(
        self, console: Console, first: str, *columns: ProgressColumn, is_shown: bool = True
    ) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=console,
            disable=not console.is_terminal or not is_shown,
        )
        self._task = self._bar.add_task(first, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, what: str, done: int, whole: int | None) -> None:
        """Shows what is at work, and how far it is."""
        self._bar.update(self._task, description=escape(what), completed=done, total=whole)


class BytesProgress(_Live):
    """A bar over the bytes of some files."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "opening", DownloadColumn(), TimeRemainingColumn())


class _Rate(ProgressColumn):
    """Rows of a table in each second; of the tasks of a stage, how many are done."""

    def render(self, task: Task) -> Text:
        """As rich asks for it."""
        if not task.fields.get("is_table"):
            return Text(f"{task.completed:.0f}/{task.total:.0f}" if task.total else "")
        speed = task.finished_speed or task.speed
        rate = f", {speed:,.0f} rows/s" if speed else ""
        return Text(f"{task.completed:,.0f} rows{rate}")


class ExportProgress(_Live):
    """A bar for the stage of an export, and one for each table that grows, the latest few."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "starting", _Rate(), TimeElapsedColumn(), TimeRemainingColumn())
        self._fraction = 0.0
        self._tables: dict[str, TaskID] = {}

    def advance(self, step: ExportStep) -> None:
        """Shows where the export is."""
        if step.table:
            self._table(step.table, step.done)
            return
        self.report(step.stage, step.done, step.total or None)
        self._fraction = step.done / step.total if step.total else 0.0
        if step.stage != "rows":
            for task in self._tables.values():
                self._bar.update(task, visible=False)

    def _table(self, name: str, rows: int) -> None:
        """Rows are spread evenly over the tasks, so what is done of those tells what is left."""
        task = self._tables.pop(name, None)
        if task is None:
            task = self._bar.add_task(escape(name), is_table=True)
        self._tables[name] = task  # the latest is the last
        expected = max(rows, round(rows / self._fraction)) if self._fraction else None
        self._bar.update(task, completed=rows, total=expected)
        shown = list(self._tables.values())[-_TABLES_SHOWN:]
        for each in self._tables.values():
            self._bar.update(each, visible=each in shown)


_TABLES_SHOWN = 8


def is_coloured() -> bool:
    """Whether standard output is a terminal that shows colours, and nobody asked for none."""
    console = Console()
    return console.is_terminal and not console.no_color


class VerifyProgress(_Live):
    """The parts of the table that is compared."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "connecting", MofNCompleteColumn(), TimeRemainingColumn())


class ReadingProgress(_Live):
    """How far files are read: a bar on a terminal that shows nothing else, else nothing."""

    def __init__(self, console: Console, *, is_shown: bool = True) -> None:
        self.meter = Meter()
        self.count = 0
        super().__init__(
            console,
            "reading",
            DownloadColumn(),
            TimeRemainingColumn(),
            is_shown=is_shown and not sys.stdout.isatty(),
        )

    def advance(self) -> None:
        """Called for each transaction."""
        self.count += 1
        if self.count % _SHOWN_EVERY == 0:
            said = f"{self.count} transactions"
            self.report(said, self.meter.read_bytes, self.meter.total_bytes)


_SHOWN_EVERY = 64
