"""The hot paths whose instructions are counted: each a piece of work of a fixed size.

They are made of what `tests/bench` measures in seconds. A path does the same each time it is asked,
so that it can be done once to warm up and once to be counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import uvloop
from hpack import Encoder

from binlogd.binlog import BinlogType, CommittedBinlog, Pulled
from binlogd.drainer.messages.pb_rows import ChangeEncoder
from binlogd.drainer.messages.pb_write import dml_binlog
from binlogd.drainer.rows.literals import laid_out
from binlogd.drainer.rows.plan import KeyColumn, written_columns
from binlogd.drainer.txn import Dml
from binlogd.grpc import frames
from binlogd.grpc.calls import CallTable, Inlet
from binlogd.grpc.hpack import SharedDecoder
from binlogd.grpc.prefix import prefixed
from binlogd.log import record
from binlogd.log.index_file import Marks
from binlogd.log.pointer import FileId, Place
from binlogd.merge.merge import Merge
from binlogd.pump.log.entry import Entry
from binlogd.pump.log.segments import Segments
from binlogd.pump.log.valuelog import LogLimits, ValueLog
from binlogd.pump.pump import Pump
from binlogd.pump.shard.index import SqliteIndex
from binlogd.pump.shard.sorter import Sorter
from binlogd.relay.frame import FrameKind, RelayEntry, RelayPos, encode_entries, encode_frame
from binlogd.tidb.jsonb import json_text
from binlogd.tidb.model import TableAt
from binlogd.tidb.row import RowDecoder, encode_insert, encode_update
from binlogd.tidb.varint import read_varint, varint
from binlogd.tso import MAX_TS, NO_TS, Tso
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.tso import PdTso
from binlogd.wire import peek
from binlogd.wire.mutation import mutations
from tests.bench import bench_codec
from tests.bench.bench_decode import first_table
from tests.bench.bench_file_sink import txns_of
from tests.bench.bench_translate import prepared, walk_s
from tests.bench.load import inserts, mixed, updates
from tests.bench.port_load import Wire, behind_port, pulled_bytes
from tests.bench.pump_load import BASE, batches, last_commit, prewrites, running_pump
from tests.sim.disk import SimDisk
from tests.sim.loop import simulated
from tests.sim.network import NetLoop, SimNetwork
from tests.support.decoding import decoded
from tests.support.pd_cluster import pd_cluster

ROWS, TXNS, GROUP = 1_000, 512, 64


class Work(NamedTuple):
    """What is counted, and how many items it is."""

    run: Callable[[], object]
    items: int
    unit: str


def _on_a_loop(make: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    return lambda: runner.run(make())


# --- the Pump ------------------------------------------------------------------------------------


def append() -> Iterator[Work]:
    """Records into the value log, on a disk in memory."""
    groups = [prewrites(n * GROUP, GROUP, payload_bytes=200) for n in range(TXNS // GROUP)]

    async def run() -> None:
        segments = await Segments.open(Path("/log"), disk=SimDisk(random.Random(1)))
        log = await ValueLog.begin(segments, LogLimits())
        for group in groups:
            await log.append(group, NO_TS)
        await log.close()

    yield Work(_on_a_loop(run), TXNS, "record")


def record_frame() -> Iterator[Work]:
    """Records made of payloads. They are not read back: under valgrind, and there alone, decoding
    refuses them."""
    payloads = prewrites(0, ROWS, payload_bytes=200)

    def run() -> None:
        for payload in payloads:
            record.encode(payload)

    yield Work(run, ROWS, "record")


def index() -> Iterator[Work]:
    """Entries filed in batches, and read back in order."""
    entries = []
    for number in range(TXNS):
        start_ts, at = Tso(BASE + number * 4), number * 300
        commit_ts = Tso(start_ts + 2)
        entries.append(Entry(BinlogType.PREWRITE, start_ts, NO_TS, FileId(0), at, 200))
        entries.append(Entry(BinlogType.COMMIT, start_ts, commit_ts, FileId(0), at + 200, 60))

    async def run() -> None:
        with TemporaryDirectory() as home:
            file = await SqliteIndex.open(Path(home) / "index.db")
            for begin in range(0, len(entries), 256):
                await file.put(entries[begin : begin + 256], Marks())
            position, found = NO_TS, 0
            while some := await file.commits_after(position, upto=MAX_TS, limit=256):
                position, found = some[-1].commit_ts, found + len(some)
            assert found == TXNS
            await file.close()

    yield Work(_on_a_loop(run), TXNS * 2, "entry")


def sorter() -> Iterator[Work]:
    """Prewrites and their commits, sixty-four open at a time."""
    places = [Place(FileId(0), number * 300, 200) for number in range(GROUP)]

    def run() -> None:
        sorts = Sorter()
        for first in range(0, TXNS, GROUP):
            for number in range(GROUP):
                sorts.prewrite(Tso(BASE + (first + number) * 4), places[number], 0.0)
            for number in range(GROUP):
                start_ts = Tso(BASE + (first + number) * 4)
                sorts.outcome(start_ts, Tso(start_ts + 2))
        assert sorts.open_count == 0

    yield Work(run, TXNS, "transaction")


def pump_write() -> Iterator[Work]:
    """The whole of `Pump.write`, on real files: admission, log, sorter, window, index."""

    async def run() -> None:
        with TemporaryDirectory() as home:
            async with running_pump(Path(home), shards=2) as pump:
                for batch in batches(TXNS, GROUP, payload_bytes=200):
                    assert not any(await pump.write(batch))

    yield Work(_on_a_loop(run), TXNS * 2, "binlog")


@contextmanager
def _served(home: Path) -> Iterator[tuple[asyncio.Runner, Pump, Wire]]:
    """A Pump behind its port, and one client."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ready: asyncio.Future[tuple[Pump, Wire]] = runner.get_loop().create_future()
        over = asyncio.Event()

        async def serve() -> None:
            async with running_pump(home, shards=2) as pump, behind_port(pump) as port:
                wire = await Wire.to(port)
                ready.set_result((pump, wire))
                await over.wait()
                wire.close()

        async def end() -> None:
            over.set()
            await serving

        serving = runner.get_loop().create_task(serve())
        pump, wire = runner.get_loop().run_until_complete(ready)
        yield runner, pump, wire
        runner.run(end())


def pull() -> Iterator[Work]:
    """Stored transactions from index and log through gRPC, to a client that reads frame heads."""
    stored = TXNS * 4
    with TemporaryDirectory() as home:

        async def fill() -> None:
            async with running_pump(Path(home), shards=2) as pump:
                for batch in batches(stored, GROUP, payload_bytes=200):
                    assert not any(await pump.write(batch))

        asyncio.run(fill())
        with _served(Path(home)) as (runner, pump, wire):
            data_bytes = runner.run(pulled_bytes(pump, last_commit(stored)))
            yield Work(lambda: runner.run(wire.pull(NO_TS, data_bytes)), stored, "transaction")


def merge() -> Iterator[Work]:
    """Eight sources into one order, without what moves them."""
    names = [f"shard-{number}" for number in range(8)]
    pulls: list[tuple[str, Pulled]] = []
    for first in range(0, TXNS, len(names) * 8):
        for at, name in enumerate(names):
            stamps = [Tso(BASE + first + at + 8 * n) for n in range(8)]
            binlogs = [CommittedBinlog(Tso(ts - 1), ts, b"payload") for ts in stamps]
            pulls.append((name, Pulled(binlogs, stamps[-1])))

    def run() -> None:
        merging, found = Merge(names, NO_TS), 0
        for name, pulled in pulls:
            merging.push(name, pulled)
            if (popped := merging.pop()) is not None:
                found += len(popped.binlogs)
        assert found > TXNS - 64

    yield Work(run, TXNS, "transaction")


def calls() -> Iterator[Work]:
    """Small gRPC calls taken out of the bytes of an HTTP/2 connection, and answered."""
    head = [(":method", "POST"), (":path", "/binlog.Pump/WriteBinlog"), ("te", "trailers")]
    shape = tuple((name.encode(), value.encode()) for name, value in head)
    encoder, sent = Encoder(), b""
    for number in range(TXNS):
        block = encoder.encode([*head, ("grpc-timeout", "15S")])
        stream = 2 * number + 1
        sent += frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)
        sent += frames.frame(frames.DATA, frames.END_STREAM, stream, prefixed(b"m" * 200))

    def run() -> None:
        inlet = Inlet(1 << 20)
        inlet.room = 1 << 30
        table = CallTable(object(), SharedDecoder().reader, {})
        table.learn(shape, inlet)
        assert table.take(sent, 0, streams=TXNS, window=1 << 30) == len(sent)
        taken = inlet.drain().calls
        assert len(table.acknowledge(taken, 1 << 30, 1 << 20)) == TXNS

    yield Work(run, TXNS, "call")


class _PdLoop(NetLoop):
    """One whose connections to a PD are simulated: on real ones, under valgrind, the limits of time
    of a call are over on a machine that others use, and it is asked again."""

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, sock: Any = None, **_: Any
    ) -> Any:
        if sock is not None:
            host, port = sock.getsockname()
            sock.close()
        return await super().create_server(protocol_factory, host, port)


def timestamps() -> Iterator[Work]:
    """Timestamps of a PD for many who wait together, both ends of the connection and the simulated
    network between them."""
    with simulated(_PdLoop) as loop:
        loop.network = SimNetwork(loop, random.Random(1))
        run_now = loop.run_until_complete
        cluster = pd_cluster()
        pd = run_now(cluster.__aenter__())
        client = PdClient(pd.addresses)
        run_now(client.cluster_id())
        oracle = PdTso(client)

        async def run() -> None:
            for _ in range(4):
                async with asyncio.TaskGroup() as group:
                    for _ in range(250):
                        group.create_task(oracle.next())

        yield Work(lambda: run_now(run()), 1000, "timestamp")

        async def end() -> None:
            await oracle.close()
            await client.close()
            await cluster.__aexit__(None, None, None)

        run_now(end())


# --- TiDB's bytes --------------------------------------------------------------------------------


def varints() -> Iterator[Work]:
    """Numbers of all lengths, written and read."""
    numbers = [(-1) ** n * (1 << n % 63) for n in range(ROWS)]

    def run() -> None:
        for number in numbers:
            assert read_varint(varint(number), 0)[0] == number

    yield Work(run, ROWS, "number")


def decode_row() -> Iterator[Work]:
    """Inserts and updates as values by column."""
    table = TableAt("test", bench_codec.TABLE, 1, None, {}, may_lack_columns=False)
    decoder = RowDecoder(table)
    values = [bench_codec.values_of(number) for number in range(1, ROWS + 1)]
    rows = [encode_insert(bench_codec.TABLE, each, handle=None) for each in values]
    changed = [encode_update(bench_codec.TABLE, each, each, handle=None) for each in values]

    def run() -> None:
        for row in rows:
            decoder.insert(row)
        for row in changed:
            decoder.update(row)

    yield Work(run, ROWS * 2, "row")


def encode_row() -> Iterator[Work]:
    """Values as TiDB writes a row into a binlog."""
    values = [bench_codec.values_of(number) for number in range(1, ROWS + 1)]

    def run() -> None:
        for each in values:
            encode_insert(bench_codec.TABLE, each, handle=None)

    yield Work(run, ROWS, "row")


def json_documents() -> Iterator[Work]:
    """TiDB's binary JSON as text."""

    def run() -> None:
        for _ in range(ROWS):
            json_text(bench_codec.DOCUMENT)

    yield Work(run, ROWS, "document")


# --- the Drainer ---------------------------------------------------------------------------------


def scan() -> Iterator[Work]:
    """Joined binlogs cut into their mutations."""
    load = inserts(ROWS)

    def run() -> None:
        for binlog in load.binlogs:
            mutations(peek.body(binlog.payload).prewrite_value)

    yield Work(run, load.rows, "row")


def translate() -> Iterator[Work]:
    """Joined binlogs with the schema of their moment, filtered."""
    load = mixed(ROWS, 2, 100)
    translator = prepared(load)

    def run() -> None:
        for binlog in load.binlogs:
            translator.translate(decoded(binlog))

    yield Work(run, load.rows, "row")


def literals() -> Iterator[Work]:
    """Updates as keys and SQL literals."""
    first, changes = first_table(updates(ROWS, 100))
    info = first.table.info
    columns, key = written_columns(info), [KeyColumn(info.columns[0])]
    fast = laid_out(first.table, columns, key)
    assert fast is not None
    rows = [row for change in changes for row in change.mutation.updated]

    def run() -> None:
        for row in rows:
            fast.update(row)

    yield Work(run, len(rows), "row")


def walk() -> Iterator[Work]:
    """A whole Drainer in front of a sink that takes everything at once."""
    load = inserts(ROWS)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(walk_s(load))

    yield Work(run, load.rows, "row")


def relay() -> Iterator[Work]:
    """Groups of transactions as frames of the relay log."""
    load = inserts(ROWS)
    entries = [RelayEntry(each.commit_ts, each.payload, b"") for each in load.binlogs]

    def run() -> None:
        for at in range(0, len(entries), 10):
            group: Sequence[RelayEntry] = entries[at : at + 10]
            body = encode_entries(group)
            encode_frame(FrameKind.GROUP, RelayPos(0, 0), group[-1].commit_ts, body)

    yield Work(run, load.rows, "row")


def messages() -> Iterator[Work]:
    """Rows as messages of the original's file sink."""
    txns = [txn for txn in txns_of(updates(ROWS, 100)) if isinstance(txn, Dml)]

    def run() -> None:
        encoders: dict[int, ChangeEncoder] = {}
        for txn in txns:
            events: list[bytes] = []
            for change in txn.changes:
                encoder = encoders.get(change.table.info.id)
                if encoder is None:
                    encoder = encoders[change.table.info.id] = ChangeEncoder(change.table)
                events += encoder.events(change.mutation)
            dml_binlog(txn.commit_ts, events)

    yield Work(run, ROWS, "row")


PATHS: dict[str, Callable[[], Iterator[Work]]] = {
    path.__name__: path
    for path in (
        varints, encode_row, decode_row, json_documents, record_frame, scan, calls, sorter, merge,
        append, index, pump_write, pull, timestamps, literals, translate, walk,
        relay, messages,
    )
}  # fmt: skip


@contextmanager
def prepared_path(name: str) -> Iterator[Work]:
    """A path's work, while the body runs."""
    made = PATHS[name]()
    yield next(made)
    assert next(made, None) is None, "a path yields once"
