"""Messages cut out of a stream: what is refused, and when."""

from __future__ import annotations

import pytest

from binlogd.errors import MalformedBinlog
from binlogd.grpc.prefix import MessageCutter


def test_a_prefix_that_announces_too_much_is_refused_before_it_is_buffered() -> None:
    with pytest.raises(MalformedBinlog, match="received message larger than max"):
        MessageCutter(1 << 20).feed(b"\x00\xff\xff\xff\xff")


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(MalformedBinlog, match="compressed"):
        MessageCutter(1 << 20).feed(b"\x01\x00\x00\x00\x01x")
