"""What TiDB says at /mvcc/hex/{key}, in the forms of 2.1, 3.0 and 4.0 to 8.3.

    2.1   {"info": {...}}
    3.0   {"key": ..., "value": {"info": {...}}}
    4.0   {"key": "7480...", "region_id": 2, "value": {"info": {"lock": ..., "writes": [...]}}}

They are TiKV's messages by Go's JSON: what is zero is left out, so that a write without `type` is a
Put. An answer may be a list of such objects. A region error inside is an answer to be asked for
again. Source: TiDB pkg/server/handler/tikvhandler, MvccTxnHandler; kvproto kvrpcpb.proto.
"""

from __future__ import annotations

from typing import Any

import msgspec

from binlogd.errors import UpstreamUnavailable
from binlogd.tso import Tso
from binlogd.upstream.mvcc import KeyHistory, Version


class _Lock(msgspec.Struct):
    start_ts: int = 0


class _Info(msgspec.Struct):
    writes: list[Version] | None = None
    lock: _Lock | None = None


class _Value(msgspec.Struct):
    info: _Info | None = None
    region_error: dict[str, Any] | None = None
    error: str = ""


class _Answer(_Value):
    value: _Value | None = None


_DECODER = msgspec.json.Decoder(_Answer | list[_Answer])


def key_history(body: bytes) -> KeyHistory:
    """All that the answer says of the key. Raises UpstreamUnavailable when it is an error, or no
    such answer."""
    try:
        answered = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamUnavailable(f"not what TiDB says at /mvcc/hex: {error}") from error
    answers = answered if isinstance(answered, list) else [answered]
    versions: list[Version] = []
    locked_by: Tso | None = None
    for answer in answers:
        value = answer.value or answer
        if value.region_error:
            message = value.region_error.get("message", "") or next(iter(value.region_error))
            raise UpstreamUnavailable(f"a region error inside the answer: {message}")
        if value.error:
            raise UpstreamUnavailable(f"an error inside the answer: {value.error}")
        info = value.info or _Info()
        versions += info.writes or ()
        if info.lock is not None and info.lock.start_ts:
            locked_by = Tso(info.lock.start_ts)
    return KeyHistory(versions, locked_by)
