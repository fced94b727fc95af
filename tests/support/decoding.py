"""Binlogs as the Translator is given them."""

from __future__ import annotations

from collections.abc import Mapping

from binlogd.binlog import CommittedBinlog
from binlogd.drainer.txn import Decoded
from binlogd.tidb.model import Job
from binlogd.wire import peek


def decoded(binlog: CommittedBinlog, jobs: Mapping[int, Job] | None = None) -> Decoded:
    """A binlog with its job, if it is among these."""
    ddl = peek.ddl(binlog.payload)
    return Decoded(binlog, ddl, jobs.get(ddl.ddl_job_id) if ddl is not None and jobs else None)
