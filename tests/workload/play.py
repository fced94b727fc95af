"""Plays a recording of a real TiDB, as the examples of the docs do: `... play keys`.

To the binlogd at 127.0.0.1:8250, until it has replicated what it took; or, with a second argument,
into a data directory that no binlogd has used yet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.error import URLError

from binlogd.errors import BinlogdError
from binlogd.host import loop
from tests.support.data_directory import write_log
from tests.workload.recording import feed_recording, payloads

RECORDINGS = Path(__file__).parents[1] / "recordings"
PATIENCE_S = 300.0


def main() -> None:
    """Prints how many binlogs were written, and what became of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recording", choices=sorted(path.name for path in RECORDINGS.iterdir()))
    parser.add_argument("data_dir", nargs="?", type=Path)
    parser.add_argument("--first", type=int, help="so many binlogs, and no more")
    parser.add_argument("--no-wait", action="store_true", help="end when all are durable")
    asked = parser.parse_args()
    directory = RECORDINGS / asked.recording
    if asked.data_dir:
        binlogs = [payload for _, payload in islice(payloads(directory), asked.first)]
        write_log(asked.data_dir, binlogs)
        sys.stdout.write(f"{len(binlogs)} binlogs\n")
        return
    host, _, port = os.environ.get("BINLOGD_ADDR", "127.0.0.1:8250").rpartition(":")
    url = f"http://{host}:{port}/status"
    try:
        _status(url)
        sent = loop.run(feed_recording(directory, (host.strip("[]"), int(port)), first=asked.first))
    except URLError as error:
        sys.exit(f"play: no binlogd answers at {url}: {error.reason}; start it first")
    except BinlogdError as error:
        sys.exit(f"play: {error}")
    outcome = "" if asked.no_wait else f", {_outcome(url)}"
    sys.stdout.write(f"{sent.acknowledged} binlogs are durable{outcome}\n")


def _outcome(url: str) -> str:
    """Waits until the Drainer has applied what there is, or can not go on."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = _status(url)
        if status["drainer"]["state"] == "stuck":
            return "but the replication is stuck"
        is_filed = not any(each["open_prewrites"] or each["queued"] for each in status["shards"])
        if is_filed and status["newest_commit_ts"] <= status["drainer"]["applied_ts"]:
            return "and replicated"
        time.sleep(0.1)
    return "but not replicated yet"


def _status(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
