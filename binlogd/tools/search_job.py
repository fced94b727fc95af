"""The process that looks for a transaction: a question as JSON in, an answer as JSON out.

It is started by the running binlogd (serving/finder.py), which waits for no disk and no decoder.
Time and memory are bounded; what was found when the time is over is the answer, and it says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from binlogd.host.child import TimeOver, give, stop_after, yield_to_others
from binlogd.serving.finder import Question
from binlogd.tools.jobs import known_jobs
from binlogd.tools.reading import find_sources
from binlogd.tools.search import Found, RowQuestion, SearchedLog, by_row, by_time, by_timestamp
from binlogd.tso import MAX_TS, Tso


def main() -> int:
    """Answers one question; CANNOT and a sentence on standard error when it cannot."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    yield_to_others(question.memory_bytes_max)
    too_large = "a transaction on the way is too large to look at; `binlogd txn` can"
    return give(lambda: _answered(question), too_large)


def _answered(question: Question) -> bytes:
    found = Found()
    try:
        stop_after(question.seconds)
        _look(question, found)
        stop_after(0)
    except TimeOver:
        found.is_complete = False  # and `found` tells how far it came
    return msgspec.json.encode(found.answer())


def _look(question: Question, found: Found) -> None:
    log_dir, *others = map(Path, question.paths)
    sources = find_sources([log_dir, *(path for path in others if _holds_files(path))])
    log = SearchedLog(sources, known_jobs(sources, None))
    start, stop = Tso(question.start), Tso(min(question.stop, MAX_TS))
    if question.ts:
        by_timestamp(log, Tso(question.ts), found)
    elif question.table or not start:
        wanted = RowQuestion(question.table, question.row, start, stop, question.limit)
        by_row(log, wanted, found)
    else:
        by_time(log, start, stop, question.limit, found)


def _holds_files(directory: Path) -> bool:
    """A relay log begins with the first binlog."""
    return directory.is_dir() and any(directory.iterdir())


if __name__ == "__main__":
    sys.exit(main())
