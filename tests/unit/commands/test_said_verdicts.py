"""Rows that differ are shown, and obeyed by no terminal."""

from __future__ import annotations

import pytest

from binlogd.commands import verify
from binlogd.tools.verify import TableVerdict
from binlogd.tso import NO_TS


def test_values_of_rows_that_differ_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    example = "missing: id=1, text=a\x1b[2J\nb"
    verify._say([TableVerdict("shop", "orders", 1, "rows differ", (example,))], NO_TS)
    assert "shop.orders missing: id=1, text=a\\x1b[2J\\nb\n" in capsys.readouterr().out
