"""What a recording takes from a call in which the process was killed."""

from __future__ import annotations

import pytest

from tests.support.traced_files import NEVER, Change, Node, settle_file

BEFORE = Change(-2, -2, 0, b".....")


@pytest.mark.parametrize("real", [b".....", b".a...", b".abc.", b".abcd"])
def test_a_write_was_done_as_far_as_the_file_has_it(real: bytes) -> None:
    node = Node("file", changes=[BEFORE, Change(3, NEVER, 1, b"abcd")])
    settle_file(node, real, 9)
    assert node.changes[1] == Change(3, 9, 1, real[1:].rstrip(b"."))


def test_a_size_was_set_or_it_was_not() -> None:
    for real, left in ((b"..", 2), (b".....", 1)):
        node = Node("file", changes=[BEFORE, Change(3, NEVER, 2, None)])
        settle_file(node, real, 9)
        assert len(node.changes) == left


def test_bytes_that_no_call_wrote_end_the_recording() -> None:
    node = Node("file", changes=[BEFORE, Change(3, NEVER, 1, b"abcd")])
    with pytest.raises(AssertionError, match="was not recorded"):
        settle_file(node, b".abc!", 9)
