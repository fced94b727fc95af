"""What Spark says went wrong, in a sentence for whoever asked."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from binlogd.snapshot import job
from binlogd.snapshot.job import failed_in_spark

TRACE = "An exception was thrown from the Python worker:\n  File writer.py\n{said}\n\tat Task.run\n"


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        ("OSError: [Errno 28] No space left on device", "OSError", "/out: No space left on device"),
        ("binlogd.errors.UnreadableRow: table s.t: bad", "UnreadableRow", "table s.t: bad"),
        ("binlogd.snapshot.log.moves.Odd: two", "Odd", "two"),
        ("something else", "PySparkException", "An exception was thrown"),
    ],
)
def test_the_reason_is_found_in_what_spark_says(said: str, kind: str, text: str) -> None:
    failed = failed_in_spark(PySparkException(TRACE.format(said=said)), "/out")
    assert failed.kind == kind
    assert failed.text.startswith(text)
    assert "\n" not in failed.text


def test_a_disk_that_is_full_for_the_driver_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(*_: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: No space left on device")

    monkeypatch.setattr(job, "build", build)
    said: list[Any] = []
    spec: Any = SimpleNamespace(out="/out")
    spark: Any = None
    assert job.run(spark, spec, said.append) == 1
    assert [each.text for each in said] == [
        "/out: No space left on device while the rows were written: free some"
    ]
