"""Reading header blocks: one decoder for two readers of the same connection.

Invariant. A block changes the table of its connection, so it is decoded once. Whoever looks ahead
leaves the outcome here, and h2 gets it when it asks for the same block next, damage included.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, HeaderTuple
from hpack.exceptions import HPACKError, OversizedHeaderListError

from binlogd.grpc.blocks import BlockReader, Field, weight


class SharedDecoder(Decoder):
    """h2's decoder, for one who wants to see a block before h2 does."""

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        """`values`: those that other connections have read; None: nobody else's."""
        super().__init__()
        values = {} if values is None else values
        self.reader = BlockReader(self.header_table, self._others, values)
        """Who looks ahead."""

    def leave(self, fields: list[Field]) -> None:
        """What h2 gets for the next block that it asks for, whatever the bytes."""
        self.reader.left = fields

    def decode(
        self,
        data: bytes,
        raw: bool = False,  # noqa: FBT001 - the library's signature
    ) -> Iterable[HeaderTuple]:
        """What was left here, else the block decoded. Raises HPACKError."""
        left, self.reader.left = self.reader.left, None
        if left is None:
            self.reader.forget()
            return super().decode(data, raw)
        if isinstance(left, HPACKError):
            raise left
        if weight(left) > self.max_header_list_size:
            raise OversizedHeaderListError("the header list is too large")
        return [field if isinstance(field, HeaderTuple) else HeaderTuple(*field) for field in left]

    def _others(self, block: bytes) -> list[Field]:
        return list(super().decode(block, raw=True))
