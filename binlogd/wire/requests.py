"""WriteBinlogReq as nearly every client writes it, many at once; made to be compiled.

Source: pingcap/tipb proto/binlog/pump.proto.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlogd.wire.fields import uvarint


def own_payloads(messages: Sequence[bytes], cluster_id: int) -> list[bytes | None]:
    """The payloads of WriteBinlogReq messages of that cluster; None for a message that has to be
    decoded by itself, be it of another cluster or in another form. Hot."""
    head = b"\x08" + uvarint(cluster_id) + b"\x12"
    at = len(head)
    payloads: list[bytes | None] = []
    for message in messages:
        size = len(message)
        payload: bytes | None = None
        if size > at + 3 and message.startswith(head):
            length = message[at]
            begin = at + 1
            if length >= 0x80:
                length += (message[at + 1] << 7) - 0x80
                begin = at + 2
                if length >= 1 << 14:
                    length += (message[at + 2] << 14) - (1 << 14)
                    begin = at + 3
            if begin + length == size and message[begin - 1] < 0x80:
                payload = message[begin:]
        payloads.append(payload)
    return payloads
