"""A process that archives segments, one a round.

Arguments: the data directory, the DDL history, the archive, how many rounds at most. Prints
`archived` with the last segment of each shard, as JSON, when a round is done: from then on the
Pump may delete them.
"""

from __future__ import annotations

import sys

import msgspec

from binlogd.archive.task import Task
from binlogd.archive.upload import archive


def main(data_dir: str, history: str, url: str, rounds: int) -> None:
    """Ends when all is archived."""
    task = Task(data_dir=data_dir, url=url, cluster_id=7, history=history, segments_max=1)
    for _ in range(rounds):
        done = archive(task)
        sys.stdout.write(f"archived {msgspec.json.encode(done.newest).decode()}\n")
        sys.stdout.flush()
        if not done.left:
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
