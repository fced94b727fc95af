"""The metrics of a pipeline that has done one batch, without a Spark."""

from __future__ import annotations

from pathlib import Path

from binlogd.spark.counts import RowCounts
from binlogd.spark.metrics import PipelineFigures
from binlogd.spark.request import request
from binlogd.tso import Tso
from tests.support.logged import Logged
from tests.workload.generator import Options


def exposed(directory: Path) -> str:
    """All names, each with a value, of one that is at half of a log."""
    logged = Logged.write(directory, Options(seed=3, transactions=20))
    figures = PipelineFigures(request(logged.options(form="changes")))
    moments = logged.workload.model.moments()
    with figures.batch(Tso(moments[0])), figures.phase("read"):
        pass
    figures.done(Tso(moments[len(moments) // 2]), RowCounts(1, 2, 3, 4, 5, 6), 7)
    return figures.text().decode()
