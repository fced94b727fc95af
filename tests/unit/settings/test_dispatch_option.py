"""The original's options about dispatch, as they are pasted from a Drainer's file."""

from __future__ import annotations

import pytest

from binlogd.node.replicated import keeps_transactions_whole
from binlogd.settings import config


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("", False),
        ('consistency = "transaction"', True),
        ("enable-dispatch = true", False),
        ("enable-dispatch = false", True),
        ("disable-dispatch = true", True),
        ("enable-dispatch = true\ndisable-dispatch = true", True),
        ("disable-detect = true", False),
    ],
)
def test_without_dispatch_transactions_stay_whole(text: str, *, is_whole: bool) -> None:
    assert keeps_transactions_whole(config.parse(f"[syncer]\n{text}", "test").syncer) == is_whole
