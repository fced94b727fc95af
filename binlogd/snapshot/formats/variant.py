"""JSON as Spark's VARIANT: a document in binary, which Spark 4 takes apart without parsing text.

In Arrow and Parquet it is a struct of `metadata` (the names) and `value`. PySpark's own encoder
makes it, so it is only there where PySpark is.
Source: apache/parquet-format VariantEncoding.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import VariantVal

from binlogd.tidb.row import Value


def built(values: Sequence[Value], type_: pa.DataType) -> pa.Array:
    """Texts of JSON documents as variants. Raises OverflowError for one that is too large."""
    return pa.array([None if each is None else _variant(str(each)) for each in values], type_)


def _variant(text: str) -> dict[str, bytes]:
    try:
        found = VariantVal.parseJson(text)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise OverflowError(str(error)) from error
    return {"metadata": bytes(found.metadata), "value": bytes(found.value)}
