"""The answer to a scan, read by slicing: a history has tens of thousands of pairs.

Source: pingcap/kvproto proto/kvrpcpb.proto, ScanResponse, KvPair.
"""

from __future__ import annotations

from collections.abc import Mapping

from binlogd.errors import MalformedBinlog
from binlogd.wire.fields import BYTES, each_field
from binlogd.wire.generated import errorpb, kvrpcpb

Pair = tuple[bytes, bytes]

_ANSWER: Mapping[int, tuple[str, int]] = {
    1: ("RegionError", BYTES),
    2: ("Pairs", BYTES),
    3: ("Error", BYTES),
}
_PAIR: Mapping[int, tuple[str, int]] = {
    1: ("Error", BYTES),
    2: ("Key", BYTES),
    3: ("Value", BYTES),
}


class ScanAnswer:
    """ScanResponse; `error` is the answer's own, or that of its first pair that has one."""

    def __init__(self) -> None:
        self.region_error: errorpb.Error | None = None
        self.error: kvrpcpb.KeyError | None = None
        self.pairs: list[Pair] = []

    def parse(self, data: bytes) -> ScanAnswer:
        """Takes the message in. Raises ValueError for what is none."""
        try:
            for field in each_field(data, "ScanResponse", _ANSWER):
                content = data[field.value : field.end]
                if field.number == 1:
                    self.region_error = errorpb.Error().parse(content)
                elif field.number == 2:
                    self._take(content)
                elif field.number == 3:
                    self.error = kvrpcpb.KeyError().parse(content)
        except MalformedBinlog as error:
            raise ValueError(str(error)) from error
        return self

    def _take(self, data: bytes) -> None:
        key = value = b""
        for number, begin, _, end in each_field(data, "KvPair", _PAIR):
            if number == 2:
                key = data[begin:end]
            elif number == 3:
                value = data[begin:end]
            elif number == 1 and self.error is None:
                self.error = kvrpcpb.KeyError().parse(data[begin:end])
        self.pairs.append((key, value))
