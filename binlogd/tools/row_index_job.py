"""The process that makes the row index: a data directory as JSON in, the bytes that are left out.

It is started by the running binlogd (serving/indexer.py), and takes what processor time is left.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from binlogd.errors import BinlogdError
from binlogd.host.child import CANNOT, yield_to_others
from binlogd.serving.indexer import Indexing
from binlogd.tools.row_indexing import index_rows


def main() -> int:
    """One round; CANNOT and a sentence on standard error when it cannot."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Indexing)
    yield_to_others(asked.memory_bytes_max)
    os.nice(19)
    try:
        left = index_rows(Path(asked.data_dir), bytes_max=asked.bytes_max)
    except (BinlogdError, OSError, MemoryError) as error:
        sys.stderr.write(f"{error or 'out of memory'}\n")
        return CANNOT
    sys.stdout.buffer.write(msgspec.json.encode(left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
