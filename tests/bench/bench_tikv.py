"""What it costs to ask TiKV: the fate of orphans, and a long history of DDL jobs.

CPU seconds of the asking thread; the scripted TiKV runs in another. Run:
`.venv/bin/python -m tests.bench.bench_tikv`
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

from binlogd.ports import Committed, OpenPrewrite
from binlogd.tso import Tso, compose
from binlogd.upstream.history import SchemaHistory
from binlogd.upstream.store import UpstreamStore
from binlogd.upstream.tikv.schema import TikvJobs
from binlogd.upstream.tikv.txn_status import TikvTxnStatus
from tests.support.cluster_thread import ClusterThread, running_cluster
from tests.support.tikv import asking, record_key

_ORPHANS = 1000
_JOBS = 5000
_JOB = {"type": 3, "state": 6, "query": "CREATE TABLE t (a INT)", "filler": "x" * 4000}


def say(bench: str, value: float, unit: str) -> None:
    print(json.dumps({"bench": bench, "value": round(value, 1), "unit": unit, "ratio": None}))


async def fates(cluster: ClusterThread) -> None:
    tikv = cluster.tikv
    prewrites = []
    for handle in range(_ORPHANS):
        start_ts, key = await tikv.tso.next(), record_key(86, handle)
        tikv.records.put(key, b"row", start_ts, Tso(start_ts + 1))
        prewrites.append(OpenPrewrite(start_ts, key))
    async with asking(tikv, question_s=60, call_s=30) as client:
        source = TikvTxnStatus(client, tikv, tikv.tso, rolls_back_abandoned=False)
        begin_s = time.thread_time()
        found = await source.statuses(prewrites)
        say("tikv_fate_cpu", (time.thread_time() - begin_s) / _ORPHANS * 1e6, "us/orphan")
    assert all(isinstance(each, Committed) for each in found)


async def history(cluster: ClusterThread, directory: Path) -> None:
    store = await UpstreamStore.open(directory / "upstream.db")
    async with asking(cluster.tikv, question_s=60, call_s=30) as client:
        jobs = SchemaHistory(TikvJobs(client, cluster.tikv.tso), store)
        for name in ("tikv_history_cpu", "tikv_history_again_cpu"):
            begin_s = time.thread_time()
            assert len(await jobs.index()) == _JOBS
            say(name, (time.thread_time() - begin_s) / _JOBS * 1e6, "us/job")
    await store.close()


def main() -> None:
    jobs = [{"id": number, **_JOB} for number in range(1, _JOBS + 1)]
    last_ts = compose(1_795_235_844_000)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(7, json.dumps(jobs).encode(), last_ts, members=1) as cluster,
    ):
        cluster.tikv.tso.observe(Tso(last_ts + (1 << 40)))
        asyncio.run(fates(cluster))
        asyncio.run(history(cluster, Path(directory)))


if __name__ == "__main__":
    main()
