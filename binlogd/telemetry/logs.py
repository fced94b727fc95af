"""Log lines: one event on each; of what a stranger can cause at will, few."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import math
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from typing import TextIO, cast


@contextmanager
def _without(library: str) -> Iterator[None]:
    """What is imported meanwhile does not find it, unless it is there already."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[library]


with _without("rich"):  # for tracebacks that show the values of variables, which ours never do
    import structlog
    from structlog.typing import EventDict, Processor, WrappedLogger

log = structlog.get_logger(__name__)

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


_PATIENCE_MS = 200
"""For who reads the log; while that one takes nothing, a line waits no more."""
_PIECE = select.PIPE_BUF // 4
"""Letters that a pipe has room for where it has any, in UTF-8."""


class Lines(TextIOBase):
    """The lines of a log. One that cannot be written ends nobody's work, and holds nobody up for
    long: `trouble` says why, while it is so, and the first line behind that is how many are
    missing. A terminal is waited for where it stands still by itself, and not by Ctrl-S."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._room = select.poll()
        self._is_file = True
        try:
            self._room.register(stream, select.POLLOUT)
        except ValueError:  # in memory
            self._is_file = False
        self._turn = threading.RLock()  # structlog's threads and those of logging
        self._missing = 0
        self.trouble = ""

    def isatty(self) -> bool:
        """As the stream beneath."""
        return self._stream.isatty()

    def write(self, text: str, /) -> int:
        """Raises nothing that a stream meets."""
        with self._turn:
            missing = {"event": "log_lines_missing", "level": "error", "lines": self._missing}
            # a full disk takes a part of the line, so this one begins anew
            note = f"\n{json.dumps({**missing, 'cause': self.trouble})}\n" if self._missing else ""
            try:
                for at in range(0, len(whole := note + text), _PIECE):
                    if self._is_file and not self._room.poll(0 if self.trouble else _PATIENCE_MS):
                        raise TimeoutError(errno.ETIMEDOUT, "who reads the log takes nothing")
                    self._stream.write(whole[at : at + _PIECE])
                    self._stream.flush()
            except OSError as error:
                self._missing += 1
                self.trouble = error.strerror or str(error)
            else:
                self._missing, self.trouble = 0, ""
        return len(text)


def set_up_logging(level: str, lines: Lines) -> None:
    """One event on a line: coloured on a terminal, JSON elsewhere; `level` as in the configuration.

    What libraries log by themselves comes out in the same form, from warnings on.
    """
    steps: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: Processor
    if lines.isatty():
        # values of variables, which may be rows or passwords, are no part of a traceback
        render = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        steps.append(structlog.processors.format_exc_info)
        render = structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[*steps, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", lines)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *steps],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(_LEVELS[level], logging.WARNING), force=True)


def set_up_log_of_command(level: str | None) -> None:
    """The log of a command that answers people, or scripts by its answer: none.

    Only what warns is shown, as a line of text on the standard error stream, where Python puts
    warnings of libraries too: a doubt about data is no noise. A `level` asks for all of it, in the
    form of a service.
    """
    if level is not None:
        set_up_logging(level, Lines(sys.stderr))
        return
    logging.getLogger("aiokafka.conn").setLevel(logging.CRITICAL)  # a stack of what it raises too
    structlog.configure(
        processors=[structlog.processors.add_log_level, _as_a_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _as_a_line(_: WrappedLogger, name: str, event: EventDict) -> str:
    """As `warning: ddl_changed: commit_ts 7, left_out …`."""
    del name
    level, what = event.pop("level"), event.pop("event")
    event.pop("exc_info", None)
    fields = ", ".join(f"{key} {value}" for key, value in event.items())
    return f"{level}: {what}: {fields}" if fields else f"{level}: {what}"


class Seldom:
    """For events that a stranger can cause at will: one is told, then none for a while."""

    def __init__(self, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._logged_s = -math.inf
        self._suppressed = 0

    def due(self, now_s: float) -> int | None:
        """How many have gone untold since the last one that was told; None if this goes so too."""
        if now_s - self._logged_s < self._every_s:
            self._suppressed += 1
            return None
        suppressed, self._suppressed, self._logged_s = self._suppressed, 0, now_s
        return suppressed

    def warn(self, event: str, **fields: object) -> None:
        """Logs it, with how many went untold, or counts it among those."""
        suppressed = self.due(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(event, **fields, others_untold=suppressed)
