"""What is left of a large payload without its rows: enough for whoever asks what it is."""

from __future__ import annotations

from binlogd.wire import peek


class Outline(bytes):
    """A canonical payload whose rows are left out; `whole_bytes` is how long it is with them."""

    whole_bytes: int


def outline(first: bytes, last: bytes, size: int) -> Outline | None:
    """Of a payload of `size` bytes, by its first ones and its last; None unless it is canonical,
    with rows and without a DDL."""
    begin = peek.begin(first)
    if begin is None or peek.large_rows(first, last, size) is None:
        return None
    made = Outline(first[: begin.value_at] + peek.NO_DDL)
    made.whole_bytes = size
    return made


def whole_bytes(payload: bytes) -> int:
    """The length of a payload, of which this may be the outline."""
    return payload.whole_bytes if isinstance(payload, Outline) else len(payload)
