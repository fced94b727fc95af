"""A Pump inside another program."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.binlog import CommittedBinlog
from binlogd.embedded import EmbeddedPump, embedded_pump
from binlogd.errors import ConfigError
from binlogd.pump.pump import PumpOptions
from binlogd.tso import NO_TS, Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.joining import join

BASE = compose(1_700_000_000_000)
OPTIONS = PumpOptions(free_bytes_min=1)


def transaction(number: int) -> list[bytes]:
    start, commit = Tso(BASE + 10 * number), Tso(BASE + 10 * number + 5)
    return [
        prewrite_binlog(start, prewrite_value=b"row %d" % number),
        commit_binlog(start, commit),
    ]


async def first(pump: EmbeddedPump, count: int, after: Tso = NO_TS) -> list[CommittedBinlog]:
    found: list[CommittedBinlog] = []
    async with pump.pull(after) as pulls:
        async for pulled in pulls:
            found += pulled.binlogs
            if len(found) >= count:
                break
    return found


async def test_what_is_written_is_pulled_in_commit_order_and_there_after_a_restart(
    tmp_path: Path,
) -> None:
    async with embedded_pump(tmp_path, options=OPTIONS) as pump:
        await pump.write([p for number in range(100) for p in transaction(number)])
        found = await first(pump, 100)
        assert [binlog.payload for binlog in found] == [
            join(*transaction(number)) for number in range(100)
        ]
        assert pump.max_commit_ts >= found[-1].commit_ts
    async with embedded_pump(tmp_path, options=OPTIONS) as pump:
        assert await first(pump, 50, found[49].commit_ts) == found[50:]


async def test_one_that_is_refused_is_told_by_itself(tmp_path: Path) -> None:
    async with embedded_pump(tmp_path, options=OPTIONS) as pump:
        with pytest.raises(ExceptionGroup, match="1 of 3 binlogs were refused") as caught:
            await pump.write([*transaction(1), b"\x08"])
        assert str(caught.value.exceptions[0]) == "unexpected EOF"
        assert len(await first(pump, 1)) == 1


async def test_a_directory_has_one_pump_at_a_time(tmp_path: Path) -> None:
    async with embedded_pump(tmp_path, options=OPTIONS):
        with pytest.raises(ConfigError):
            async with embedded_pump(tmp_path, options=OPTIONS):
                raise AssertionError("it was let in")
