"""A disk that is full when the node starts: what may go goes, or it is said what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance
from tests.support.small_disk import fill, mounted

BASE = compose(1_700_000_000_000)
PATIENT = ClientLimits(deadline_s=60.0, prewrite_retry_s=0.0, outcome_retry_s=0.0)
OLD = 12


pytestmark = pytest.mark.soak  # it mounts, which only root may, and not everywhere


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[Appliance]:
    machine = Appliance(tmp_path)
    machine.configure("[drainer]\nenabled = false\n", 'node-id = "pump0"\n')
    config = machine.config_file.read_text()
    config = config.replace(
        'space = "1 MiB"', 'space = "20 MiB"\ngc = "1s"\nsegment-size = "1 MiB"'
    )
    machine.config_file.write_text(config)
    with mounted(machine.data_dir, megabytes=128):
        yield machine
        machine.close()


def write(appliance: Appliance, numbers: Sequence[int], size: int) -> None:
    async def all_of_them() -> None:
        async with PumpClient(*appliance.target, cluster_id=7, limits=PATIENT) as client:
            for number in numbers:
                start_ts, commit_ts = Tso(BASE + (number << 30)), Tso(BASE + (number << 30) + 1)
                rows = encode_mutations(1, []) + bytes([10, 0]) * (size // 2)
                await client.write(
                    prewrite_binlog(start_ts, prewrite_key=b"k", prewrite_value=rows)
                )
                await client.write(commit_binlog(start_ts, commit_ts))

    asyncio.run(all_of_them())


def test_a_node_starts_on_a_full_disk_frees_what_is_old_and_takes_binlogs_again(
    appliance: Appliance,
) -> None:
    reserve = appliance.data_dir / "reserve"
    appliance.start()
    write(appliance, range(OLD), 1 << 20)
    appliance.wait(lambda status: reserve.exists() and status["max_commit_ts"] > BASE)
    appliance.kill()
    old = {path for path in appliance.data_dir.rglob("*.vlog") if path.stat().st_size > 1 << 20}
    assert old
    fill(appliance.data_dir)
    appliance.start()
    status = appliance.wait(lambda status: not status["refuses_because"])
    assert status["gc"]["failed"] == ""
    assert not reserve.exists()
    assert not all(path.exists() for path in old)
    write(appliance, [1_000], 10)
    assert appliance.stop() == 0

    # Now nothing is left to give up: the start ends, and says where, how much, and what to do.
    fill(appliance.data_dir)
    kept = {path: path.read_bytes() for path in appliance.data_dir.rglob("*.vlog")}
    appliance.start(is_ready=False)
    assert appliance.end() == 1
    said = appliance.log()
    assert f"data-dir {appliance.data_dir}: its disk is full, 0 bytes are free (" in said
    assert "tried again" not in said, "it has ended"
    assert "free at least 16777216 bytes more on that file system, or enlarge it" in said
    assert {path: path.read_bytes() for path in kept} == kept

    (appliance.data_dir / "filler").unlink()
    appliance.start()
    appliance.wait(lambda status: reserve.exists() and not status["refuses_because"])
    assert appliance.stop() == 0
