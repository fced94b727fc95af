"""Files of a lake's tables: what readers pass over them by, how they are dealt out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from binlogd.archive.store import ArchiveStore
from binlogd.errors import Corrupt
from binlogd.snapshot.log.events import EVENTS
from binlogd.snapshot.log.packets import PACKETS, PIECE_BYTES, TornPacket, unpacked
from binlogd.spark.counts import RowCounts
from binlogd.spark.lake.content import SMALL_BYTES, SMALL_MAX, TouchedFiles, dealt, touched
from binlogd.spark.lake.files import DataFile, LakeFiles
from binlogd.spark.lake.manifest import CLAIM_NAME, Claim, LakeTable, claim_place
from binlogd.spark.lake.merging import PART_BYTES, parts_of
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import place_of
from binlogd.spark.lake.rows import KEY_COLUMN, KEY_ID, KeyChanges

LARGE = SMALL_BYTES


def schema_of(**columns: pa.DataType) -> pa.Schema:
    numbers = [*range(1, len(columns) + 1), KEY_ID]
    every = {**columns, KEY_COLUMN: pa.binary()}
    return pa.schema(
        pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
        for number, (name, kind) in zip(numbers, every.items(), strict=True)
    )


@pytest.mark.parametrize(
    ("text", "octets"),
    [(pa.string_view(), pa.binary_view()), (pa.large_string(), pa.large_binary())],
)
def test_texts_of_a_file_are_read_however_they_lay_in_memory(
    text: pa.DataType, octets: pa.DataType, tmp_path: Path
) -> None:
    """delta-rs notes views in what it writes, as it did for binlogd before 2026-11-28."""
    schema = schema_of(name=pa.string(), raw=pa.binary())
    rows = pa.table({"name": ["a", None], "raw": [b"b", b""], KEY_COLUMN: [b"k", b"l"]})
    (tmp_path / "lake" / "table-1").mkdir(parents=True)
    before = rows.cast(pa.schema(zip(schema.names, (text, octets, octets), strict=True)))
    pq.write_table(before, tmp_path / "lake" / "table-1" / "old.parquet")
    files = LakeFiles(place_of(f"delta:{tmp_path / 'lake'}"), LakeTable(1, "table-1", 0))
    assert pa.Table.from_batches(files.read("old.parquet", schema)).equals(rows.cast(schema))
    assert files.keys("old.parquet").to_pylist() == [b"k", b"l"]


def test_a_delta_log_tells_the_bounds_of_what_a_file_holds(tmp_path: Path) -> None:
    """Readers pass files over by them: a wrong one would hide rows."""
    wall, moment = datetime(2024, 2, 29, 23, 59, 59, 999_999), datetime(1970, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - has none
    schema = schema_of(
        number=pa.int64(),
        share=pa.float64(),
        price=pa.decimal128(30, 2),
        name=pa.string(),
        story=pa.string(),
        day=pa.date32(),
        wall=pa.timestamp("us"),
        moment=pa.timestamp("us", "UTC"),
        is_new=pa.bool_(),
        note=pa.string(),
    )
    low = [-(1 << 60), -1.5, Decimal("-12345678901234567890.25"), "a", "x" * 99, date(1, 1, 1)]
    high = [1 << 60, 2.5, Decimal("0.01"), "zoë", "y", date(9999, 12, 31)]
    columns = list(zip([*low, wall, moment, False], [*high, wall, moment, True], strict=True))
    arrays = [*columns, (None, None), (b"k", b"\xff")]
    rows = pa.table(
        [pa.array(each, of) for each, of in zip(arrays, schema.types, strict=True)], schema
    )
    tables = Lake(place_of(f"delta:{tmp_path}")).content()
    head = tables.kind.create(LakeTable(1, "table-1", 0), schema, "d.t", 5)
    tables.append(head, schema, rows.to_batches(), 5)
    told = pa.table(DeltaTable(str(tmp_path / "table-1")).get_add_actions(flatten=True))
    bounds = {name: values[0].as_py() for name, values in zip(told.column_names, told, strict=True)}
    for name, (least, most) in zip(schema.names, columns, strict=False):
        if name == "story":  # too long to stand in a log
            assert bounds[f"min.{name}"] is None
            continue
        assert (bounds[f"min.{name}"], bounds[f"max.{name}"]) == (least, most), name
    assert bounds["null_count.note"] == 2
    assert bounds["num_records"] == 2
    found = DeltaTable(str(tmp_path / "table-1")).to_pyarrow_dataset()
    assert found.to_table(filter=pa.dataset.field("price") < Decimal("-1.00")).num_rows == 1


def test_a_table_whose_files_know_no_ids_is_merged_by_the_names_of_columns(tmp_path: Path) -> None:
    """As they are in a lake that delta-rs wrote."""
    schema = schema_of(v=pa.int64(), text=pa.string())
    plain = pa.schema([each.remove_metadata() for each in schema])
    held = pa.table([[1, 2, 3], ["a", "b", "c"], [b"1", b"2", b"3"]], plain)
    write_deltalake(str(tmp_path / "table-1"), held)
    puts = pa.table([[20, 40], ["B", "D"], [b"2", b"4"]], schema)
    tables = Lake(place_of(f"delta:{tmp_path}")).content()
    head = LakeTable(1, "table-1", 0)
    head = tables.merge(head, schema, [KeyChanges(puts, pa.array([b"3"], pa.binary()))], 6)
    found = [row for each in tables.read(head, schema) for row in each.to_pylist()]
    assert sorted((row["v"], row["text"]) for row in found) == [(1, "a"), (20, "B"), (40, "D")]
    assert (head.rows, head.files) == (3, 1)


def file(name: str, size: int, low: bytes | None = None, high: bytes | None = None) -> DataFile:
    return DataFile(name, size, low, high)


def test_what_a_batch_touches_are_files_that_may_hold_its_keys_and_small_ones() -> None:
    files = [file("before", LARGE, b"a", b"b"), file("within", LARGE, b"b", b"e")]
    files += [file("behind", LARGE, b"f", b"g"), file("unknown", LARGE)]
    small = [file(f"small{each}", 1, b"x", b"y") for each in range(SMALL_MAX)]
    may, folded = touched([*files, *small], b"c", b"e")
    assert ([each.name for each in may], folded) == (["within", "unknown"], [])
    more = [*small, file("one more", 1, b"c", b"d")]
    may, folded = touched([*files, *more], b"c", b"e")
    assert ([each.name for each in may], folded) == (["within", "unknown"], more)


def test_files_are_dealt_by_size_and_small_ones_stay_together() -> None:
    sizes, small = [50, 40, 30, 20, 10], [file("one", 5), file("two", 5)]
    work = TouchedFiles([file(str(each), each) for each in sizes], small)
    shares = dealt(work, 3)
    assert [each for share in shares for each in share.folded] == small
    assert sorted(each.size_bytes for share in shares for each in share.may) == sorted(sizes)
    assert max(each.size_bytes for each in shares) - min(each.size_bytes for each in shares) <= 20
    assert dealt(TouchedFiles([], []), 3) == []
    assert len(dealt(work, 1)) == 1


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_large_tables_have_parts_of_their_own_and_all_others_one(cores: int) -> None:
    sizes = {1: 100, 2: 3 * PART_BYTES, 3: PART_BYTES - 1, 4: 50 * PART_BYTES, 5: 0}
    parts = parts_of({each: RowCounts(bytes=size) for each, size in sizes.items()}, cores)
    assert {each: of.many for each, of in parts.of.items()} == {
        1: 1,
        2: min(cores, 4),
        3: 1,
        4: cores,
        5: 1,
    }
    for table_id, of in parts.of.items():
        held = sizes[table_id] / of.many / of.pieces
        assert held <= PIECE_BYTES, "what is in memory at a time"
        packets = parts.packets(changes_of(table_id, range(2_000))).to_pylist()
        assert len({each["partition"] for each in packets}) == of.many
        assert {each["piece"] for each in packets} == set(range(of.pieces))
        assert sum(each["count"] for each in packets) == 2_000
        assert all(0 <= each["partition"] < parts.total for each in packets)
    assert parts_of({}, cores).total == 1


def test_a_key_goes_to_one_part_and_piece_whoever_sends_it() -> None:
    parts = parts_of({1: RowCounts(bytes=500 * PART_BYTES), 2: RowCounts(bytes=1)}, 3)
    both = pa.concat_batches([changes_of(1, range(50)), changes_of(2, range(50))])
    at_once, alone = (
        {
            (table_id, key): (packet["partition"], packet["piece"])
            for some in sent
            for packet in parts.packets(some).to_pylist()
            for table_id, key in keys_of(packet["changes"])
        }
        for sent in ([both], [both.slice(each, 1) for each in range(len(both))])
    )
    assert at_once == alone
    assert len(alone) == 100


def test_keys_that_differ_in_high_bits_alone_go_to_all_parts() -> None:
    parts = parts_of({1: RowCounts(bytes=8 * PART_BYTES)}, 8)
    keys = [(number << 48).to_bytes(8, "big") for number in range(1_000)]
    packets = parts.packets(changes_of(1, range(1_000), keys)).to_pylist()
    assert min(each["count"] for each in packets) > 50
    assert len({each["partition"] for each in packets}) == 8


def test_a_packet_that_came_with_less_than_was_sent_is_told() -> None:
    parts = parts_of({1: RowCounts(bytes=1)}, 1)
    (row,) = parts.packets(changes_of(1, range(10))).to_pylist()
    less = pa.RecordBatch.from_pylist([{**row, "count": 11}], PACKETS)
    with pytest.raises(TornPacket, match=r"shop.orders: a packet of 11 changes came with 10"):
        list(unpacked([less], lambda _: "shop.orders"))


def changes_of(table_id: int, numbers: Sequence[int], keys: Sequence[bytes] = ()) -> pa.RecordBatch:
    keys = keys or [b"%08d" % each for each in numbers]
    rows = [(table_id, key, 1, each, 1, 1, b"row") for each, key in zip(numbers, keys, strict=True)]
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, of) for column, of in zip(columns, EVENTS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


def keys_of(changes: bytes) -> list[tuple[int, bytes]]:
    found = pa.ipc.open_stream(changes).read_all()
    return list(zip(found["table_id"].to_pylist(), found["key"].to_pylist(), strict=True))


def test_a_damaged_note_of_whose_a_place_is_is_named(tmp_path: Path) -> None:
    (tmp_path / CLAIM_NAME).write_bytes(b'{"pipeline": "\xff"}')
    store, mine = ArchiveStore.open(str(tmp_path), what="lake"), Claim("mine", "checkpoint")
    with pytest.raises(Corrupt, match=f"^a lake/{CLAIM_NAME}: "):
        claim_place(store, "a lake", mine, takes_over=True)
