"""What binlogd keeps from other users of its machine, and from its own children."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from binlogd.client.pump_client import PumpClient
from binlogd.host.child import answered
from binlogd.host.privacy import environment_of_children
from binlogd.tso import Tso, compose
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.mutation import encode_mutations
from tests.support.appliance import Appliance, into_mariadb
from tests.support.mariadb import MariaDb

OTHERS, WRITERS_OF_THE_GROUP = 0o007, 0o020
BASE = compose(1_700_000_000_000)
SECRETS = {
    "BINLOGD_ADMIN_TOKEN": "0123456789abcdef",
    "BINLOGD_SYNCER__TO__PASSWORD": "hunter2",
    "MYSQL_PSWD": "hunter2",
    "BINLOG_SECRET_KEY": "a5" * 16,
}


async def _one_transaction(machine: Appliance) -> None:
    start, commit = Tso(BASE + 2), Tso(BASE + 3)
    rows = encode_mutations(3, [])
    async with PumpClient("127.0.0.1", machine.port, cluster_id=7) as client:
        await client.write(
            prewrite_binlog(start, prewrite_key=b"t\x80\x00k\n", prewrite_value=rows)
        )
        await client.write(commit_binlog(start, commit))


def test_no_file_of_a_node_is_for_other_users(tmp_path: Path, mariadb: MariaDb) -> None:
    machine = Appliance(tmp_path, history=b"[]", syncer=into_mariadb(mariadb))
    try:
        machine.start()
        asyncio.run(_one_transaction(machine))
        machine.wait_until_applied(BASE + 3)
        machine.stop()
    finally:
        machine.close()
    relay = tmp_path / "relay"
    found = [machine.data_dir, *machine.data_dir.rglob("*"), relay, *relay.rglob("*")]
    assert {"pump", "relay", "upstream.db"} <= {each.name for each in found}
    open_to_others = [
        (str(each), oct(each.stat().st_mode))
        for each in found
        if each.stat().st_mode & (OTHERS | WRITERS_OF_THE_GROUP)
    ]
    assert not open_to_others


async def test_a_child_is_not_told_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "nowhere-1")
    program = "import os, sys; sys.stdout.write(' '.join(os.environ))"
    said = await answered(
        (sys.executable, "-c", program), b"", timeout_s=60, answer_bytes_max=1 << 16
    )
    names = set(said.decode().split())
    assert not names & set(SECRETS)
    assert {"AWS_REGION", "PATH"} <= names


def test_what_children_are_told_is_all_but_ours() -> None:
    assert environment_of_children({**SECRETS, "HOME": "/"}) == {"HOME": "/"}
    assert "PATH" in environment_of_children(os.environ)
