"""A process whose log grows and is followed, with a round of the archiver now and then.

Arguments: the data directory, the DDL history, the archive, and a file with the payloads as JSON.
Prints `told` with the watermark that the archive has, when a round is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from binlogd.archive import follower
from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from tests.support.growing_log import GrowingLog

follower.CUT_BYTES, follower.PART_BYTES_MAX, follower.MERGED = 2_000, 6_000, 3


def main(data_dir: str, history: str, url: str, payloads: str) -> None:
    """Ends with the payloads."""
    left = msgspec.json.decode(Path(payloads).read_bytes(), type=list[bytes])
    log = GrowingLog(Path(data_dir), shards=2, segment_bytes=1 << 12)
    task = Task(data_dir=data_dir, url=url, cluster_id=7, history=history, segments_max=1)
    archived = archive(task).newest
    following = follower.Follower(Path(data_dir), url, grace_s=0)
    for begin in range(0, len(left), 12):
        log.append(left[begin : begin + 12])
        assert following.follow(log.follow(url, archived))
        sys.stdout.write(f"told {log.resolved_ts}\n")
        sys.stdout.flush()
        archived = archive(task).newest


if __name__ == "__main__":
    main(*sys.argv[1:])
