"""Every kind of file that binlogd writes and reads again, with all that read it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

from binlogd.archive import catalog as catalog_module
from binlogd.archive.catalog import Bound, put_bound, read_catalog, read_tail
from binlogd.archive.follower import Follower
from binlogd.archive.places import ArchivedIndex, DirectoryIndex
from binlogd.archive.reading import LogReader
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import Follow, Grown, Stand, Task
from binlogd.archive.upload import archive, verify
from binlogd.archive.view import local_view
from binlogd.drainer.checkpoint import Checkpoint
from binlogd.drainer.files.checkpoint import DurableUpTo, Savepoint
from binlogd.drainer.files.log import compressed_name, encode_record
from binlogd.drainer.files.sink import FileSink, FileSinkOptions
from binlogd.drainer.files.tail import find_tail
from binlogd.drainer.messages.pb_write import ddl_binlog
from binlogd.drainer.messages.secondary_write import ddl_message
from binlogd.drainer.restore_original import _transactions as original_transactions
from binlogd.drainer.restore_original import base_of
from binlogd.drainer.schema_log import SchemaEvent, SchemaLog
from binlogd.errors import Corrupt, CorruptRecord
from binlogd.host.clock import WallClock
from binlogd.host.disk import PosixDisk
from binlogd.log import gone, record
from binlogd.log.checked_text import checksummed
from binlogd.log.directory import pump_directory, segment_file, shards_below
from binlogd.log.pointer import FIRST, FileId
from binlogd.pump.bases import Bases
from binlogd.pump.checking.check import check
from binlogd.pump.kept_routing import SHARDS_FILE, kept_routing, routing_of
from binlogd.pump.route import Routing
from binlogd.relay.frame import RelayEntry
from binlogd.relay.log import RelayWriter
from binlogd.relay.reader import read_relay
from binlogd.snapshot.log.prewrites import heads
from binlogd.snapshot.log.reader import payloads, slices
from binlogd.snapshot.spec import PinnedSegment
from binlogd.tidb.job_index import JobEntry
from binlogd.tidb.model import job_from_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tools.pump_log import joined
from binlogd.tools.reading import find_sources, transactions
from binlogd.tools.records import records
from binlogd.tools.row_index import encode_frame, frames
from binlogd.tools.transaction import CommitWindow, Meter
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.store import SkipEntry, UpstreamStore, kept_jobs
from binlogd.wire.binlogs import commit_binlog, prewrite_binlog
from binlogd.wire.generated.etcdserverpb import PutRequest, RangeRequest
from tests.support.appending import recovered_log
from tests.support.damage import Kind, Reader
from tests.support.pb_reader import file_records, read_file_log
from tests.support.pump_world import at, commit, posix_world, pulled, rollback, written

T = TypeVar("T")
_LAKE = "none: JSON without a checksum; what does not decode is named"
_EXPORT = "none: the manifest has SHA-256 of each file, and no checksum of its own"
_TRANSIENT = "none: a child's orders, or its log, which ends with it"
WRITERS: dict[str, list[str]] = {
    "archive/catalog.py": ["catalog of an archive", "page of an archive", "bound of an archive"],
    "archive/follower.py": ["tail of an archive", "part of an archive", "places of a part"],
    "archive/places.py": ["index"],
    "archive/store.py": ["segment of an archive"],
    "archive/upload.py": ["description of an archive"],
    "archive/view.py": ["none: a view ends with who reads it"],
    "cli.py": ["none: /dev/null, where a standard file is closed"],
    "commands/ctl.py": ["savepoint"],
    "drainer/files/sink.py": ["file of a sink", "compressed file", "savepoint"],
    "drainer/schema_log.py": ["schema log"],
    "drainer/sqlite/sink.py": ["none: a replica is the user's database, read by the user"],
    "host/child.py": ["none: the kernel's"],
    "host/database.py": ["none: by it the others write"],
    "host/disk.py": ["none: by it the others write"],
    "log/gone.py": ["value.gone"],
    "node/assembly.py": ["none: a name is text; another name is another node, which is told"],
    "pump/bases.py": ["base"],
    "pump/checking/adopt.py": ["shards"],
    "pump/checking/index_audit.py": ["index"],
    "pump/checking/repair.py": ["sealed segment"],
    "pump/kept_routing.py": ["shards"],
    "pump/log/segments.py": ["none: it syncs what another process has left"],
    "pump/log/spool.py": ["none: it becomes a segment, or is removed unread"],
    "pump/log/valuelog.py": ["open segment", "sealed segment", "segment of a Pump"],
    "pump/shard/index_database.py": ["index"],
    "relay/log.py": ["relay"],
    "settings/made_token.py": ["none: another token is refused by every route"],
    "snapshot/export.py": [_EXPORT],
    "snapshot/formats/file_kinds.py": [_EXPORT],
    "snapshot/process/launcher.py": [_TRANSIENT],
    "snapshot/process/preflight.py": [_TRANSIENT],
    "snapshot/publishing/marks.py": [_EXPORT],
    "snapshot/writing/write.py": [_EXPORT],
    "spark/export_places.py": [_EXPORT],
    "spark/lake/manifest.py": [_LAKE],
    "spark/lake/names.py": ["none: JSON with a checksum, by a reader of the archive's"],
    "spark/lake/seed.py": [_LAKE],
    "spark/submit.py": [_TRANSIENT],
    "tools/archive_log.py": ["sealed segment"],
    "tools/measure.py": ["none: a bench's own"],
    "tools/pump_log.py": ["index"],
    "tools/row_indexing.py": ["row index"],
    "upstream/keyspace/database.py": ["upstream.db"],
    "upstream/store.py": ["upstream.db"],
}
"""Modules that write, and the kinds of files that they write, or why a file needs none."""
COUNT = 4
RECORDS = [
    record.encode(binlog)
    for ts in range(10, 10 + 10 * COUNT, 10)
    for binlog in (
        prewrite_binlog(Tso(ts), prewrite_value=b"\x7a" + bytes([ts]) + b"r" * ts),
        commit_binlog(Tso(ts), Tso(ts + 5)),
    )
]
FOOTER = record.footer(Tso(10 * COUNT + 5))
JOBS = [
    b'{"id":%d,"type":1,"schema_id":1,"schema_name":"d","query":"create database d%d",'
    b'"state":6,"start_ts":%d,"binlog":{"SchemaVersion":%d,"FinishedTS":%d,"DBInfo":{"id":%d,'
    b'"db_name":{"O":"d%d","L":"d%d"},"state":5}}}' % (n, n, 10 * n, n, 10 * n + 5, n, n, n)
    for n in (1, 2, 3)
]


def _with_disk(work: Callable[[PosixDisk], Awaitable[T]]) -> T:
    async def done() -> T:
        disk = PosixDisk(threads=1)
        try:
            return await work(disk)
        finally:
            disk.close()

    return asyncio.run(done())


# --- a Pump's log ----------------------------------------------------------------------------


def _value(directory: Path) -> Path:
    return segment_file(directory, 0, FIRST.fid).parent


def _with_segment(content: bytes) -> Callable[[Path], None]:
    def made(directory: Path) -> None:
        path = segment_file(directory, 0, FIRST.fid)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        (pump_directory(directory) / SHARDS_FILE).write_bytes(Routing(1).to_bytes())

    return made


def _recovered(directory: Path) -> object:
    async def read(disk: PosixDisk) -> object:
        return [payload for _, payload in (await recovered_log(_value(directory), disk))[1]]

    return _with_disk(read)


def _checked(directory: Path) -> object:
    report = _with_disk(lambda disk: check(directory, disk, lambda *_: None))
    wrong = [each for each in report.findings if "it is missing" not in each.what]
    if wrong:
        raise CorruptRecord(wrong[0].path, wrong[0].begin or 0, wrong[0].what)
    return list(range(report.shards[0].records))


def _listed(directory: Path) -> object:
    (source,) = find_sources([directory])
    return [(each.kind, each.start_ts, each.commit_ts) for each in records(source, Meter())]


def _told(directory: Path) -> object:
    found = transactions(find_sources([directory]), CommitWindow(), meter=Meter())
    return [
        (each.start_ts, each.commit_ts, each.raw.payload if each.raw else each.ddl)
        for each in found
    ]


def _sliced(directory: Path) -> object:
    parts = slices(_pinned(directory), 1 << 20)
    return [payload for part in parts for _, payload in payloads(part)]


def _heads(directory: Path) -> object:
    found = [heads(part) for part in slices(_pinned(directory), 1 << 20)]
    return [int(each) for told in found for each in told.start_ts]


def _pinned(directory: Path) -> list[PinnedSegment]:
    return [
        PinnedSegment(0, int(file.stem), str(file), file.stat().st_size, file.stat().st_size)
        for file in sorted(_value(directory).glob("*.vlog"))
    ]


def _planned(directory: Path) -> object:
    places = DirectoryIndex(directory)
    resolved_ts = places.resolved_ts()
    store = ArchiveStore.open(str(directory))
    found = list(LogReader(store, places).binlogs(NO_TS, Tso(1 << 62)))
    assert not found or found[-1].commit_ts <= resolved_ts
    return found


def _archived(directory: Path) -> object:
    to = directory / "archive"
    done = archive(Task(data_dir=str(directory), url=str(to), with_open=True))
    if problems := verify(str(to)).problems:
        raise Corrupt(problems[0])
    return list(range(done.transactions))


_LOG_READERS = [
    Reader("recovery without an index", _recovered),
    Reader("check", _checked),
    Reader("dump --raw", _listed),
    Reader("dump", _told),
    Reader("export, slices", _sliced),
    Reader("export, heads", _heads),
    Reader("Spark's plan", _planned),
    Reader("archive", _archived),
]


# --- a Pump that has an index ------------------------------------------------------------------


def _started(number: int) -> bytes:
    return prewrite_binlog(at(number), prewrite_key=b"k", prewrite_value=b"\x08\x01")


def _pump(directory: Path) -> None:
    async def wrote() -> None:
        async with posix_world(directory) as world:
            world.times.says = at(100)
            async with world.pump() as pump:
                await written(pump, _started(1), commit(1, 2), _started(3), rollback(3))
                await written(pump, _started(5), _started(6), commit(6, 7), commit(5, 8))
                await written(pump, _started(11), commit(11, 12))

    asyncio.run(wrote())
    for name in ("reserve", ".lock"):
        (directory / name).unlink(missing_ok=True)


def _served(directory: Path) -> object:
    async def read() -> object:
        async with posix_world(directory) as world:
            world.times.says = at(100)
            async with world.pump() as pump, asyncio.timeout(30):
                before = await pulled(pump, upto=at(12))
                await written(pump, _started(20), commit(20, 21))
                return before, await pulled(pump, upto=at(21))

    try:
        return asyncio.run(read())
    except* Exception as group:  # noqa: BLE001 - the one that it holds is raised
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _of_plan(directory: Path) -> object:
    places = DirectoryIndex(directory)
    store = ArchiveStore.open(str(directory))
    return list(LogReader(store, places).binlogs(NO_TS, min(places.resolved_ts(), at(12))))


def _joined(directory: Path) -> object:
    (shard,) = shards_below(directory)
    found = list(joined(shard, CommitWindow(), Meter()))
    if any(each.prewrite_place is None for each in found):  # which is told as a note
        raise Corrupt("the log does not hold the prewrite")
    return [each[:3] for each in found]


# --- a row index --------------------------------------------------------------------------------


def _row_index(directory: Path) -> None:
    keys = [("key", Tso(15)), ("other", Tso(25))]
    content = encode_frame(0, 90, [15, 25], [("d", "t", ("a",))], [5], keys)
    _small("rows/000000.rows", content * 1)(directory)


def _row_index_read(directory: Path) -> object:
    """Whatever does not verify is read from the log."""
    found = []
    content = (directory / "rows" / "000000.rows").read_bytes()
    for frame, end in frames(memoryview(content)):
        commits = [frame.commits(key) for key in ("key", "other", "none")]
        if None in commits:
            raise Corrupt("000000.rows: a block is passed over")
        found.append((frame.head, commits, end))
    if not found:
        raise Corrupt("000000.rows: it is passed over")
    return found


# --- small files --------------------------------------------------------------------------------


def _small(name: str, content: bytes) -> Callable[[Path], None]:
    def made(directory: Path) -> None:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    return made


def _shards(directory: Path) -> None:
    directory.joinpath("pump").mkdir()
    _with_disk(lambda disk: routing_of(directory / "pump", 4, disk))


def _gone(directory: Path) -> None:
    value = directory / "pump" / "shard-0" / "value"
    value.mkdir(parents=True)
    _with_disk(lambda disk: gone.note(value, disk, Tso(470611042594193417), FileId(12)))


# --- relay, schema and files --------------------------------------------------------------------


def _entry(ts: int) -> RelayEntry:
    return RelayEntry(Tso(ts), b"payload %d" % ts + bytes.fromhex("38004005"), b'{"id":%d}' % ts)


def _relay(directory: Path) -> None:
    async def wrote(disk: PosixDisk) -> None:
        writer = RelayWriter(directory / "relay", disk, max_file_bytes=1 << 20)
        await writer.open(after=Tso(1), snapshot=lambda: SchemaTracker().snapshot())
        for ts in (2, 3, 4):
            await writer.append([_entry(ts)])
        await writer.close()

    _with_disk(wrote)
    (directory / "relay" / ".lock").unlink()


def _relay_read(directory: Path) -> object:
    async def read(disk: PosixDisk) -> object:
        relay = await read_relay(disk, directory / "relay", Tso(1))
        return [each async for batch in relay.batches for each in batch]

    return _with_disk(read)


def _relay_continued(directory: Path) -> object:
    async def read(disk: PosixDisk) -> object:
        writer = RelayWriter(directory / "relay", disk, max_file_bytes=1 << 20)
        await writer.open(after=Tso(1), snapshot=lambda: SchemaTracker().snapshot())
        try:
            return list(range(writer.statistics().last_ts))
        finally:
            await writer.close()

    return _with_disk(read)


def _relay_listed(directory: Path) -> object:
    (source,) = find_sources([directory / "relay"])
    return [(each.kind, each.commit_ts, each.detail) for each in records(source, Meter())]


def _original(directory: Path) -> None:
    where = directory / "relay"
    where.mkdir()
    messages = [
        ddl_message(Tso(ts), "d", "t", b"CREATE TABLE t%d (a INT)" % ts) for ts in (2, 3, 4)
    ]
    content = b"".join(map(encode_record, messages))
    (where / "binlog-0000000000000000-20261121055056").write_bytes(content)


def _original_base(directory: Path) -> None:
    _original(directory)
    (directory / "relay/base").write_bytes(checksummed(b"%d" % 470611042594193417))


def _original_restored(directory: Path) -> object:
    found = original_transactions(directory / "relay", NO_TS, MAX_TS)
    return [(each.commit_ts, each.ddl) for each, _ in found]


def _schema(directory: Path) -> None:
    async def wrote(disk: PosixDisk) -> None:
        kept = SchemaLog(directory / "schema", disk)
        tracker = SchemaTracker()
        tracker.apply(job_from_json(JOBS[0]), 5)
        await kept.begin(tracker, Tso(16))
        for number in (1, 2):
            job = job_from_json(JOBS[number])
            await kept.append([SchemaEvent.of(Tso(10 * number + 16), 5, job)])
        await kept.close()

    (directory / "schema").mkdir()
    _with_disk(wrote)


def _schema_file(directory: Path) -> str:
    return next((directory / "schema").iterdir()).name


def _schema_loaded(directory: Path) -> object:
    """Passed over, the schema comes from the history: the same."""

    async def read(disk: PosixDisk) -> object:
        kept = SchemaLog(directory / "schema", disk)
        found = await kept.load(Checkpoint(Tso(36), schema_version=3))
        await kept.close()
        if found is None:
            raise Corrupt(f"{_schema_file(directory)}: passed over")
        return found.snapshot()

    return _with_disk(read)


STATEMENTS = [
    encode_record(ddl_binlog(Tso(each), f"use d; CREATE TABLE t{each} (a INT);"))
    for each in range(1, 5)
]
_NAME = "binlog-0000000000000000-20261121055056"


def _sink(directory: Path) -> None:
    out = directory / "out"
    out.mkdir()
    (out / _NAME).write_bytes(b"".join(STATEMENTS))
    written_to = DurableUpTo(_NAME, len(STATEMENTS[0]), Tso(1))
    saved = Savepoint(Checkpoint(Tso(1), False, 7), written_to)
    (directory / "savepoint").write_bytes(saved.to_toml())


def _compressed(directory: Path) -> None:
    out = directory / "out"
    out.mkdir()
    plain = directory / "plain"
    plain.write_bytes(b"".join(STATEMENTS))

    async def packed(disk: PosixDisk) -> None:
        await disk.compress(plain, out / compressed_name(_NAME, Tso(1)))

    _with_disk(packed)


def _sink_read(directory: Path) -> object:
    return [(each.commit_ts, each.ddl) for each in read_file_log(directory / "out")]


def _sink_shown(directory: Path) -> object:
    return [each.payload for _, each in file_records(directory / "out")]


def _sink_told(directory: Path) -> object:
    return _told(directory / "out")


def _sink_opened(directory: Path) -> object:
    async def read(disk: PosixDisk) -> object:
        sink = FileSink(
            directory / "out",
            directory / "savepoint",
            disk=disk,
            clock=WallClock(),
            options=FileSinkOptions(),
        )
        try:
            return await sink.open()
        finally:
            await sink.close()

    return _with_disk(read)


def _tail(directory: Path) -> object:
    """Without its savepoint."""
    found = _with_disk(lambda disk: find_tail(disk, directory / "out", None))
    return list(range(found.commit_ts + 1 if found.dropped_bytes else 4))


# --- databases -----------------------------------------------------------------------------------


def _store(directory: Path) -> None:
    async def wrote() -> None:
        path = directory / "upstream.db"
        store = await UpstreamStore.open(path)
        await store.put_fact("cluster_id", 6791641053252586769)
        await store.put_fact("tso_limit", 470611042594193417)
        await store.put_skip(SkipEntry(Tso(470611042594193417), "because", 1_700_000_000_000))
        await store.put_jobs([(JobEntry(10 * n + 5, 10 * n, n, n), JOBS[n - 1]) for n in (1, 2, 3)])
        await store.close()
        keyspace = await KeyspaceStore.open(path, Random(1))
        for name in ("a", "b"):
            await keyspace.put(PutRequest(key=b"pumps/" + name.encode(), value=b'{"nodeId": "a"}'))
        await keyspace.close()

    asyncio.run(wrote())


def _stored(directory: Path) -> object:
    async def read() -> object:
        store = await UpstreamStore.open(directory / "upstream.db")
        try:
            facts = [await store.fact(name) for name in ("cluster_id", "tso_limit")]
            jobs = await store.read_jobs([1, 2, 3])
            return facts, await store.skips(), jobs, await store.job_entries()
        finally:
            await store.close()

    return asyncio.run(read())


def _keys(directory: Path) -> object:
    async def read() -> object:
        store = await UpstreamStore.open(directory / "upstream.db")  # as in a node
        try:
            keyspace = await KeyspaceStore.open(store.path, Random(1))
        finally:
            await store.close()
        try:
            found = await keyspace.range(RangeRequest(key=b"pumps/", range_end=b"pumps0"))
            identity = keyspace.identity
            return [(each.key, each.value, each.mod_revision) for each in found.kvs], identity
        finally:
            await keyspace.close()

    return asyncio.run(read())


def _jobs_kept(directory: Path) -> object:
    return kept_jobs(directory / "upstream.db")


# --- an archive -----------------------------------------------------------------------------------


def _archive(directory: Path) -> None:
    data, history = directory / "data", directory / "history.json"
    _with_segment(b"".join(RECORDS) + FOOTER)(data)
    history.write_bytes(b"[" + b",".join(JOBS) + b"]")
    task = Task(data_dir=str(data), url=str(directory / "to"), history=str(history), cluster_id=7)
    archive(task)


def _cut_archive(directory: Path) -> None:
    """Something before what is left is gone."""
    _archive(directory)
    put_bound(ArchiveStore.open(str(directory / "to")), Bound(gone_ts=9, first={0: 0}))


def _paged_archive(directory: Path) -> None:
    """The first segment of two stands in a page."""
    _archive(directory)
    _second(directory)


def _followed_archive(directory: Path) -> None:
    """One segment, and a second that grows."""
    _archive(directory)
    more = prewrite_binlog(Tso(90), prewrite_value=b"\x08\x01"), commit_binlog(Tso(90), Tso(95))
    content, data = b"".join(map(record.encode, more)), directory / "data"
    (_value(data) / "000001.vlog").write_bytes(content)
    stand = Stand(0, (Grown(1, len(content), False),))
    url = str(directory / "to")
    asked = Follow(data_dir=str(data), url=url, resolved_ts=95, shards=(stand,))
    assert Follower(data, url).follow(asked)
    assert len(read_tail(ArchiveStore.open(url)).parts) == 1


def _archive_read(directory: Path) -> object:
    catalog_module._segments_of.cache_clear()
    store = ArchiveStore.open(str(directory / "to"))
    catalog = read_catalog(store)
    places = ArchivedIndex(store, catalog)
    binlogs = list(LogReader(store, places).binlogs(NO_TS, places.resolved_ts()))
    return binlogs, places.resolved_ts(), places.gone_ts()


def _archive_viewed(directory: Path) -> object:
    with local_view(str(directory / "to"), directory / "view") as view:
        content = _sliced(view.data_dir)
        return content, view.schema_history, view.cluster_id, view.resolved_ts


def _archive_verified(directory: Path) -> object:
    found = verify(str(directory / "to"))
    if found.problems:
        raise Corrupt(found.problems[0])
    return found


def _second(directory: Path) -> None:
    """With one more transaction in a second segment."""
    data = directory / "data"
    more = prewrite_binlog(Tso(90), prewrite_value=b"\x08\x01"), commit_binlog(Tso(90), Tso(95))
    content = b"".join(map(record.encode, more)) + record.footer(Tso(95))
    (_value(data) / "000001.vlog").write_bytes(content)
    url, history = str(directory / "to"), str(directory / "history.json")
    task = Task(data_dir=str(data), url=url, history=history, cluster_id=7, page_segments=1)
    archive(task)


def _archive_continued(directory: Path) -> object:
    _second(directory)
    return _archive_read(directory)


@cache
def all_kinds() -> dict[str, Kind]:
    """By name."""
    return {each.name: each for each in _kinds()}


def _kinds() -> list[Kind]:
    whole = b"".join(RECORDS)
    log = Kind(
        "open segment",
        _with_segment(whole),
        "**/*.vlog",
        _LOG_READERS,
        may_be_short=True,
        named_by=("catalog.json",),
    )
    sealed = Kind(
        "sealed segment",
        _with_segment(whole + FOOTER),
        "**/*.vlog",
        _LOG_READERS,
        may_be_short=True,  # who has only the log cannot know that it was sealed
        named_by=("catalog.json",),
    )
    served = [Reader("Pump", _served), Reader("check", _checked)]
    relay = [
        Reader("restore", _relay_read),
        Reader("Drainer", _relay_continued, comes_again=True),
        Reader("dump --raw", _relay_listed),
    ]
    files = [
        Reader("reading", _sink_read),
        Reader("dump --raw", _sink_shown),
        Reader("dump", _sink_told),
    ]
    archives = [
        Reader("Spark's reading", _archive_read),
        Reader("export", _archive_viewed),
        Reader("archive --check", _archive_verified),
        Reader("archive", _archive_continued),
    ]
    return [
        *(
            Kind(
                f"{name} of an archive",
                _archive,
                f"to/{victim}",
                archives,
                named_by=("catalog.json", "the catalog says", "000000.vlog", "in the catalog"),
            )
            for name, victim in (
                ("catalog", "catalog.json"),
                ("segment", "shard-0/*.vlog"),
                ("description", "shard-0/*.json"),
                ("places", "shard-0/*.parquet"),
                ("DDL history", "ddl_history.json"),
            )
        ),
        Kind(
            "bound of an archive",
            _cut_archive,
            "to/kept.json",
            archives,
            named_by=("kept.json",),
        ),
        *(
            Kind(
                name,
                _followed_archive,
                f"to/{victim}",
                archives[:3],
                named_by=("tail.json", "tail/shard-0", "shard-0/000001.vlog"),
            )
            for name, victim in (
                ("tail of an archive", "tail.json"),
                ("part of an archive", "tail/shard-0/*.vlog"),
                ("places of a part", "tail/shard-0/*.parquet"),
            )
        ),
        Kind(
            "page of an archive",
            _paged_archive,
            "to/pages/*.json",
            [archives[0], archives[2]],
            named_by=("pages/000000",),
        ),
        Kind(
            "upstream.db",
            _store,
            "upstream.db",
            [
                Reader("node", _stored),
                Reader("keyspace", _keys),
                Reader("tools", _jobs_kept),
            ],
        ),
        Kind("row index", _row_index, "rows/*.rows", [Reader("look-up", _row_index_read)]),
        log,
        sealed,
        Kind("segment of a Pump", _pump, "pump/shard-0/value/*.vlog", served),
        Kind(
            "index",
            _pump,
            "pump/shard-0/index.db",
            [*served, Reader("Spark's plan", _of_plan), Reader("dump", _joined)],
            named_by=(
                "the index leads to another binlog",
                "the log does not hold the prewrite",
                "000000.vlog at offset",
                "no such segment",
                "the segment is not there",
                "the file is missing",
            ),
        ),
        Kind(
            "shards",
            _shards,
            "pump/shards",
            [
                Reader("Pump", lambda d: _with_disk(lambda disk: routing_of(d / "pump", 4, disk))),
                Reader("check", lambda d: _with_disk(lambda disk: kept_routing(d / "pump", disk))),
            ],
        ),
        Kind(
            "value.gone",
            _gone,
            "pump/shard-0/value.gone",
            [
                Reader(
                    "Pump",
                    lambda d: _with_disk(lambda disk: gone.said(d / "pump/shard-0/value", disk)),
                ),
                Reader("export", lambda d: gone.gone_ts(0, d / "pump/shard-0/value", 12)),
            ],
        ),
        Kind(
            "base",
            lambda d: _with_disk(lambda disk: Bases(d, disk).declare("a", Tso(470611042594193417))),
            "bases/a",
            [Reader("Pump", lambda d: _with_disk(lambda disk: Bases(d, disk).declared()))],
        ),
        Kind("relay", _relay, "relay/*.log", relay, may_be_short=True, named_by=("is empty",)),
        Kind(
            "original relay",
            _original,
            "relay/binlog*",
            [Reader("restore", _original_restored)],
            may_be_short=True,
        ),
        Kind(
            "base of an original relay",
            _original_base,
            "relay/base",
            [Reader("restore", lambda d: base_of(d / "relay"))],
        ),
        Kind("schema log", _schema, "schema/*.log", [Reader("Drainer", _schema_loaded)]),
        Kind(
            "file of a sink",
            _sink,
            "out/binlog*",
            [*files, Reader("Drainer without a savepoint", _tail)],
            may_be_short=True,
        ),
        Kind("compressed file", _compressed, "out/binlog*", files),
        Kind("savepoint", _sink, "savepoint", [Reader("Drainer", _sink_opened)]),
    ]
