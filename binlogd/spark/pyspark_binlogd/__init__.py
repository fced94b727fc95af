"""Registers the data source `binlogd` by itself: PySpark looks for packages called pyspark_*."""

from binlogd.spark.source import BinlogdSource as DefaultSource

__all__ = ["DefaultSource"]
