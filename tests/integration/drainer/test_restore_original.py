"""From the relay log that a killed Go Drainer left, MariaDB is brought to a consistent state."""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.log import encode_record
from binlogd.drainer.filtering.filter import TableFilter
from binlogd.drainer.mysql.named_apply import NamedApplier, NamedOptions
from binlogd.drainer.mysql.sink import MySqlSink, MySqlSinkOptions
from binlogd.drainer.restore import Restored
from binlogd.drainer.restore_original import BASE_NAME, restore_original
from binlogd.drainer.txn import Ddl, Dml, Txn
from binlogd.errors import ConfigError, CorruptRelay
from binlogd.log.checked_text import checksummed
from binlogd.tso import Tso
from tests.integration.drainer.test_secondary_recordings import message
from tests.support.artefacts import ARTEFACTS
from tests.support.mariadb import MariaDb
from tests.support.recordings_reader import RECORDINGS, committed, compare
from tests.support.replay import SKIPPED, apply_all, running, server_of, sink_for, translated

CHECKPOINT_TS, RECOVERED_TS, LAST_TS = (
    Tso(470611451185725448),
    Tso(470611451199094800),
    Tso(470611451290845195),
)
Part = list[tuple[Txn, bytes]]
LEFT_OUT = ("keys_tidb", "keys_fk", "keys_wrong")
LOST_BEFORE = ("ci_general_ci", "ci_unicode_ci", "ci_unicode_ci_nc", "prefix_pk")
"""Where the Go Drainer had lost rows before it was killed (keys equal by collation)."""


@pytest.fixture
def relay(tmp_path: Path) -> Path:
    with tarfile.open(ARTEFACTS / "drainer_relay_keys.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "relay"


def load(mariadb: MariaDb, name: str) -> None:
    """What stood downstream, the checkpoint row too."""
    text = gzip.decompress((ARTEFACTS / f"{name}.sql.gz").read_bytes()).decode()
    mariadb.execute(*(part for part in text.split(";\n") if part.strip()))


Tables = dict[str, list[tuple[bytes | None, ...]]]


def tables(mariadb: MariaDb) -> Tables:
    """Columns and rows of the tables of `keys`."""
    connection = mariadb.connect()
    found: Tables = {}

    def asked(question: str) -> list[tuple[bytes | None, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(question)
            return list(cursor.fetchall())

    for (name,) in asked("SHOW TABLES IN `keys`"):
        label = (name or b"").decode()
        rows = asked(f"SELECT * FROM `keys`.`{label}`")
        found[label] = asked(f"SHOW COLUMNS FROM `keys`.`{label}`") + sorted(rows, key=str)
    connection.close()
    return found


def sink_of(mariadb: MariaDb) -> MySqlSink:
    """Of the only cluster that the server has a checkpoint of."""
    return MySqlSink(server_of(mariadb), 0, MySqlSinkOptions(lanes=2), Random(1))


async def restored(mariadb: MariaDb, relay: Path, to_ts: Tso | None = None) -> Restored:
    return await restore_original(
        relay_directory=relay,
        sink=sink_of(mariadb),
        applier=NamedApplier(server_of(mariadb), NamedOptions(is_safe=True), Random(1)),
        table_filter=TableFilter(),
        to_ts=to_ts,
    )


async def stored(mariadb: MariaDb) -> Checkpoint | None:
    sink = sink_of(mariadb)
    checkpoint = await sink.open()
    await sink.close()
    return checkpoint


def damaged(relay: Path) -> Path:
    """A copy with a flipped bit in the middle of its last file."""
    copy = relay.with_name("damaged")
    shutil.copytree(relay, copy)
    newest = max(copy.glob("binlog-*"))
    content = bytearray(newest.read_bytes())
    content[3000] ^= 1
    newest.write_bytes(content)
    return copy


async def wanted_of(mariadb: MariaDb) -> Tables:
    """What binlogd makes of the same binlogs, without any crash."""
    left_out = (*SKIPPED["keys"], *LEFT_OUT)
    known = (txn for txn in translated(RECORDINGS / "keys", left_out) if txn.commit_ts <= LAST_TS)
    await apply_all(sink_for(mariadb, 1), known)
    wanted = tables(mariadb)
    mariadb.reset()
    return wanted


async def test_what_a_killed_go_drainer_left_is_completed(relay: Path, mariadb: MariaDb) -> None:
    wanted = await wanted_of(mariadb)
    load(mariadb, "drainer_relay_keys.downstream")
    left = tables(mariadb)

    # in the Go Drainer's own recovery a deadlock took rows 1 and 2, and it stopped there
    done = await restored(mariadb, relay, RECOVERED_TS)
    assert (done.from_ts, done.to_ts) == (CHECKPOINT_TS, RECOVERED_TS)
    assert await stored(mariadb) == Checkpoint(RECOVERED_TS, True, 122)
    found = tables(mariadb)
    assert [name for name in found if found[name] != left[name]] == ["dup"]
    assert [row[0] for row in found["dup"][4:]] == [b"1", b"2", b"3", b"4", b"60"]

    # damage ends it behind all that is whole, and the checkpoint says that it is in the middle
    with pytest.raises(CorruptRelay, match=r"binlog-0000000000000007-\d+ at offset"):
        await restored(mariadb, damaged(relay), LAST_TS)
    checkpoint = await stored(mariadb)
    assert checkpoint == Checkpoint(RECOVERED_TS, False, 122)

    # a restore that was cut short is run again, to the end this time
    done = await restored(mariadb, relay)
    assert (done.from_ts, done.to_ts) == (RECOVERED_TS, LAST_TS)
    found = tables(mariadb)
    assert found.keys() == wanted.keys()
    differing = [name for name in wanted if found[name] != wanted[name]]
    assert set(differing) <= set(LOST_BEFORE)
    assert (await restored(mariadb, relay)).was_consistent
    with pytest.raises(ConfigError, match="cannot take any back"):
        await restored(mariadb, relay, RECOVERED_TS)


def written(directory: Path, part: Part, base_ts: Tso) -> Path:
    """A relay log in the original's format, with the file `base` that earlier versions wrote."""
    directory.mkdir()
    records = [encode_record(message(txn, payload)) for txn, payload in part]
    (directory / "binlog-0000000000000000-20261121055056").write_bytes(b"".join(records))
    (directory / BASE_NAME).write_bytes(checksummed(b"%d" % base_ts))
    return directory


def kept(left_out: Sequence[str]) -> Part:
    """What of a recording leaves something downstream."""
    payloads = {each.commit_ts: bytes(each.payload) for each in committed(RECORDINGS / "few")}
    found = translated(RECORDINGS / "few", left_out)
    return [
        (txn, payloads.get(txn.commit_ts, b""))
        for txn in found
        if isinstance(txn, Dml) or (isinstance(txn, Ddl) and not txn.is_skipped)
    ]


class Crashed(Exception):
    """The end of the Drainer's process."""


async def test_a_database_left_in_the_middle_is_completed(tmp_path: Path, mariadb: MariaDb) -> None:
    left_out = (*SKIPPED["few"], *LEFT_OUT, "keys.no_key", "keys.uniq_null", "keys.shard*")
    part = kept(left_out)
    saved = part[len(part) // 3][0].commit_ts
    relay = written(tmp_path / "relay", part, Tso(0))
    sink = sink_for(mariadb, 2)
    with pytest.RaisesGroup(Crashed):
        async with running(sink):
            await sink.submit([txn for txn, _ in part if txn.commit_ts <= saved])
            await sink.flush()
            await sink.save(Checkpoint(saved))
            await sink.submit([txn for txn, _ in part if txn.commit_ts > saved][:90])
            raise Crashed
    done = await restored(mariadb, relay)
    assert (done.from_ts, done.to_ts) == (saved, part[-1][0].commit_ts)
    connection = mariadb.connect()
    assert [str(each) for each in compare(RECORDINGS / "few", connection, left_out)] == []
    connection.close()


async def test_a_log_that_begins_behind_the_checkpoint_is_refused(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    part = kept(LEFT_OUT)
    relay = written(tmp_path / "relay", part[60:], part[59][0].commit_ts)
    sink = sink_for(mariadb, 1)
    await sink.open()
    await sink.save(Checkpoint(part[50][0].commit_ts))
    await sink.close()
    with pytest.raises(ConfigError, match="what lies between cannot be restored"):
        await restored(mariadb, relay)
