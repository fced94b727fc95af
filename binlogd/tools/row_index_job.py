"""The process that makes the row index: a data directory as JSON in, the bytes that are left out.

It is started by the running binlogd (serving/indexer.py), and takes what processor time is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from binlogd.host.child import give, yield_to_others
from binlogd.serving.indexer import Indexing
from binlogd.tools.row_indexing import index_rows


def main() -> int:
    """One round; CANNOT and a sentence on standard error when it cannot."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Indexing)
    yield_to_others(asked.memory_bytes_max)
    os.nice(19)
    directory, bytes_max = Path(asked.data_dir), asked.bytes_max
    return give(lambda: msgspec.json.encode(index_rows(directory, bytes_max=bytes_max)))


if __name__ == "__main__":
    sys.exit(main())
