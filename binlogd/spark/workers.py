"""As `snapshot.workers`, with what the workers of a pipeline need imported already."""

from __future__ import annotations

from binlogd.snapshot.workers import main
from binlogd.spark import source
from binlogd.spark.lake import merging

PRELOADED = (source, merging)

if __name__ == "__main__":
    main()
