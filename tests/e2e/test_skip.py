"""`binlogd skip`: a replication that is stuck goes on, and the decision is kept with its reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from binlogd.client.pump_client import PumpClient
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import Mutation, encode_mutations
from tests.support.appliance import Appliance, run

BASE = compose(1_700_000_000_000)
UNKNOWN = encode_mutations(1, [Mutation(77, [b"\x08\x02"], [], [], b"\x00")])
EMPTY = encode_mutations(1, [])


def write(appliance: Appliance, *values: tuple[int, bytes]) -> None:
    async def all_of_them() -> None:
        client = PumpClient(*appliance.target, cluster_id=7)
        for number, value in values:
            start, commit = Tso(BASE + number), Tso(BASE + number + 1)
            await client.write(prewrite_binlog(start, prewrite_key=b"k", prewrite_value=value))
            await client.write(commit_binlog(start, commit))
        client.close()

    asyncio.run(all_of_them())


def test_what_is_stuck_goes_on_at_once_and_the_decision_outlives_a_restart(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path, history=b"[]")
    stuck, next_stuck = BASE + 11, BASE + 31
    try:
        appliance.start()
        write(appliance, (1, EMPTY), (10, UNKNOWN), (20, EMPTY), (30, UNKNOWN), (40, EMPTY))
        said = appliance.wait(lambda status: status["drainer"]["state"] == "stuck")
        assert f"`binlogd skip {stuck} --reason" in said["drainer"]["error"]
        watched = run(tmp_path, "status", "--fail-if-stuck", "--config", "binlogd.toml")
        assert watched.returncode == 1
        assert str(stuck) in watched.stdout
        refused = run(tmp_path, "skip", str(stuck), "--config", "binlogd.toml")
        assert refused.returncode == 2
        assert "COMMIT_TS: not without --reason" in refused.stderr
        words = ("--reason", "a table of the test", "--config", "binlogd.toml")
        assert run(tmp_path, "skip", str(stuck), *words).returncode == 0
        appliance.wait(lambda status: str(next_stuck) in status["drainer"]["error"])
        late = run(tmp_path, "skip", str(BASE + 2), *words)
        assert late.returncode == 1
        assert "is applied already" in late.stdout
        appliance.kill()
        assert run(tmp_path, "skip", str(next_stuck), *words).returncode == 0
        again = run(tmp_path, "skip", str(next_stuck), "--reason", "b", "--config", "binlogd.toml")
        assert "passed over already; the reason that was given first stays" in again.stdout
        listed = run(tmp_path, "skip", "--json", "--config", "binlogd.toml")
        assert [(each["commit_ts"], each["reason"]) for each in json.loads(listed.stdout)] == [
            (stuck, "a table of the test"),
            (next_stuck, "a table of the test"),
        ]
        appliance.start()
        appliance.wait_until_applied(BASE + 41)
    finally:
        appliance.close()


def test_a_directory_that_no_binlogd_knows_is_not_made_for_a_decision(tmp_path: Path) -> None:
    for words in (
        *(("skip", "5", "--reason", "why"), ("skip",), ("nodes",)),
        *(("base",), ("base", "nightly", "--at", "5")),
    ):
        refused = run(tmp_path, *words, "--data-dir", str(tmp_path / "wrong"))
        assert refused.returncode == 2
        assert "no binlogd has run there yet; name the directory" in refused.stderr
    assert not (tmp_path / "wrong").exists()


def test_a_file_that_cannot_be_opened_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "binlog-0000000000000000-20240102030405").symlink_to(tmp_path / "nowhere")
    refused = run(tmp_path, "dump", str(tmp_path))
    assert refused.returncode == 1
    assert "20240102030405: No such file or directory" in refused.stderr
    assert "Traceback" not in refused.stderr
