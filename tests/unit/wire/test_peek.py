"""The scanner gives betterproto's answers, the Go encoder's bytes and the Go decoder's words."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import MalformedBinlog
from binlogd.tso import Tso
from binlogd.wire import outline, peek
from binlogd.wire.binlogs import (
    commit_binlog,
    encode,
    fake,
    fields_of,
    prewrite_binlog,
    rollback_binlog,
)
from binlogd.wire.fields import uvarint
from binlogd.wire.generated import binlog as pb
from binlogd.wire.joining import join, join_of
from binlogd.wire.mutation import Mutation, encode_mutations, mutations, mutations_of
from binlogd.wire.outline import large_rows

RECORDINGS = Path(__file__).parents[2] / "recordings"
TS = 412518831548007863

int64s = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 300), st.integers(TS, TS + 999)
)
blobs = st.one_of(st.binary(max_size=8), st.binary(min_size=120, max_size=300))
optional_blobs = st.one_of(st.none(), blobs)


def as_stored(payload: bytes) -> bytes:
    return peek.head_and_canonical(payload)[1]


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (as_stored(b""), "08001000180038004000"),
        (prewrite_binlog(Tso(1)), "08001001180038004000"),
        (commit_binlog(Tso(1), Tso(2)), "08011001180238004000"),
        (rollback_binlog(Tso(1)), "08021001180038004000"),
        (fake(Tso(TS)), "080210b78bd08c91f6e3dc0518b78bd08c91f6e3dc0538004000"),
        (commit_binlog(Tso(5), Tso(-1)), "0801100518ffffffffffffffffff0138004000"),
        (
            join(
                prewrite_binlog(Tso(1), prewrite_value=b"v"),
                commit_binlog(Tso(1), Tso(2)),
            ),
            "0801100118022a017638004000",
        ),
    ],
)
def test_bytes_equal_those_of_the_go_encoder(built: bytes, expected: str) -> None:
    assert built.hex() == expected
    assert as_stored(built) is built


@given(
    st.binary(max_size=40) | blobs.map(lambda blob: prewrite_binlog(Tso(TS), prewrite_value=blob))
)
def test_head_and_canonical_form_come_in_one_look(payload: bytes) -> None:
    try:
        expected = peek.peek(payload), as_stored(payload)
    except MalformedBinlog as error:
        with pytest.raises(MalformedBinlog, match=re.escape(str(error))):
            peek.head_and_canonical(payload)
    else:
        assert peek.head_and_canonical(payload) == expected


def test_an_empty_payload_is_a_prewrite_of_nothing() -> None:
    assert peek.peek(b"") == (0, 0, 0, 0)


def test_a_client_that_omits_field_8_still_gets_it_on_disk() -> None:
    assert as_stored(bytes.fromhex("0800100118003800")).hex() == "08001001180038004000"


def test_fields_in_any_order_repeated_and_unknown_are_put_right() -> None:
    unknown = b"\x48\x07\x52\x02hi"  # fields 9 and 10
    payload = b"\x18\x02" + unknown + b"\x22\x01k\x22\x01l\x10\x01\x08\x01\x2a\x00"
    expected = b"\x08\x01\x10\x01\x18\x02\x22\x01l\x2a\x00\x38\x00\x40\x00" + unknown
    assert as_stored(payload) == expected
    assert as_stored(expected) is expected


def test_a_group_ends_by_its_depth_whatever_number_its_end_has() -> None:
    """As with skipBinlog of tipb, which was asked: it does not look at the number."""
    group = b"\xc3\x06\x18\x07\x4b\x22\x01k\x54\x2a\x01v\xc4\x0f"  # 104 to 248, and 9 to 10 in it
    payload = b"\x08\x00\x10\x01\x18\x02" + group + b"\x38\x03\x40\x00"
    assert peek.peek(payload) == (0, 1, 2, 3)
    assert peek.body(payload) == (b"", b"", 3, 0)
    assert as_stored(payload) == b"\x08\x00\x10\x01\x18\x02\x38\x03\x40\x00" + group


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\x08", "unexpected EOF"),
        (b"\x22\x05ab", "unexpected EOF"),
        (b"\x0a\x00", "proto: wrong wireType = 2 for field Tp"),
        (b"\x20\x00", "proto: wrong wireType = 0 for field PrewriteKey"),
        (b"\x00", "proto: Binlog: illegal tag 0 (wire type 0)"),
        (b"\x0c", "proto: Binlog: wiretype end group for non-group"),
        (b"\x08" + b"\xff" * 11, "proto: integer overflow"),
        (b"\x22" + b"\xff" * 9 + b"\x01", "proto: negative length found during unmarshaling"),
        (b"\x4f\x00", "proto: illegal wireType 7"),
        (b"\x4b\x08\x01", "unexpected EOF"),
    ],
)
def test_malformed_payloads_are_refused_in_the_words_of_the_go_decoder(
    payload: bytes, words: str
) -> None:
    for read in (peek.peek, as_stored, peek.body, peek.prewrite_key):
        with pytest.raises(MalformedBinlog) as caught:
            read(payload)
        assert str(caught.value) == words


@pytest.mark.parametrize("length", [1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("field", [4, 5, 6])
def test_a_length_beyond_every_memory_is_malformed_to_whoever_looks(
    field: int, length: int
) -> None:
    begin = commit_binlog(Tso(TS), Tso(TS + 1))[:-4] + uvarint(field << 3 | 2)
    for rest in (b"", b"\x38\x00\x40\x00", b"\x2a\x01a\x32\x01b\x38\x00\x40\x00"):
        payload = begin + uvarint(length) + rest
        for read in (
            *(peek.peek, as_stored, peek.head_and_canonical, peek.body, peek.prewrite_key),
            *(mutations_of, lambda each: join(each, each)),
        ):
            with pytest.raises(MalformedBinlog):
                read(payload)
        assert peek.plain_numbers(payload) is None
        assert large_rows(payload, payload, len(payload)) is None
        assert field != 4 or outline.begin(payload) is None


@given(int64s, int64s, optional_blobs, st.binary(max_size=300))
def test_numbers_of_a_canonical_payload_are_read_at_once_and_of_no_other_one(
    start_ts: int, commit_ts: int, key: bytes | None, value: bytes
) -> None:
    prewrite = prewrite_binlog(Tso(start_ts), prewrite_key=key, prewrite_value=value)
    commit = commit_binlog(Tso(start_ts), Tso(commit_ts), prewrite_key=key)
    assert peek.plain_numbers(prewrite) == (None if start_ts < 0 else (0, start_ts, 0))
    is_plain = min(start_ts, commit_ts) >= 0
    assert peek.plain_numbers(commit) == ((1, start_ts, commit_ts) if is_plain else None)
    for end in range(len(commit)):
        assert peek.plain_numbers(commit[:end]) is None
    longer = commit.replace(b"\x10", b"\x10\x80", 1)  # other numbers, or a byte too many
    found = peek.plain_numbers(longer)
    assert found is None or found == peek.head_and_canonical(longer)[0][:3]
    assert found is None or peek.head_and_canonical(longer)[1] == longer


@given(int64s, int64s, optional_blobs, optional_blobs, optional_blobs, int64s, st.integers(0, 5))
def test_betterproto_reads_what_the_builders_write(
    start_ts: int,
    commit_ts: int,
    key: bytes | None,
    value: bytes | None,
    query: bytes | None,
    job_id: int,
    state: int,
) -> None:
    prewrite = prewrite_binlog(
        Tso(start_ts),
        prewrite_key=key,
        prewrite_value=value,
        ddl_query=query,
        ddl_job_id=job_id,
        ddl_schema_state=state,
    )
    message = pb.Binlog().parse(prewrite)
    assert as_stored(prewrite) is prewrite
    assert peek.peek(prewrite) == (message.tp, message.start_ts, 0, message.ddl_job_id)
    assert peek.prewrite_key(prewrite) == message.prewrite_key == (key or b"")
    assert peek.body(prewrite) == (value or b"", query or b"", job_id, state)
    assert as_stored(bytes(message)) == prewrite or b"" in (key, value, query)

    joined = join(prewrite, commit_binlog(Tso(start_ts), Tso(commit_ts)))
    whole = pb.Binlog().parse(joined)
    assert as_stored(joined) is joined
    assert (whole.tp, whole.start_ts, whole.commit_ts) == (1, start_ts, commit_ts)
    assert peek.body(joined) == peek.body(prewrite)
    assert whole.prewrite_key == b""


varint_fields = st.tuples(st.sampled_from([1, 2, 3, 7, 8, 9]), int64s)
blob_fields = st.tuples(st.sampled_from([4, 5, 6, 10]), blobs)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return uvarint(number << 3) + uvarint(value)
    return uvarint(number << 3 | 2) + uvarint(len(value)) + value


@given(st.lists(st.one_of(varint_fields, blob_fields), max_size=12))
def test_any_order_of_fields_reads_as_betterproto_reads_it(
    parts: list[tuple[int, int | bytes]],
) -> None:
    payload = b"".join(_field(number, value) for number, value in parts)
    expected = {number: value for number, value in parts if number < 9}
    head = peek.peek(payload)
    assert head.start_ts == expected.get(2, 0)
    assert head.commit_ts == expected.get(3, 0)
    assert head.ddl_job_id == expected.get(7, 0)
    body = peek.body(payload)
    assert (body.prewrite_value, body.ddl_query) == (expected.get(5, b""), expected.get(6, b""))
    canonical = as_stored(payload)
    assert as_stored(canonical) == canonical
    assert peek.peek(canonical) == head
    assert peek.body(canonical) == body
    message = pb.Binlog().parse(canonical)
    assert (message.start_ts, message.commit_ts) == (head.start_ts, head.commit_ts)
    assert (message.prewrite_value, message.ddl_query) == (body.prewrite_value, body.ddl_query)


@given(st.binary(max_size=60))
def test_garbage_is_read_or_refused_and_nothing_else(payload: bytes) -> None:
    try:
        head = peek.peek(payload)
    except MalformedBinlog:
        return
    assert peek.peek(as_stored(payload)) == head


@given(st.binary(max_size=40), st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_binlog_is_read_alike_by_both_paths(value: bytes, at: int, byte: int) -> None:
    whole = bytearray(prewrite_binlog(Tso(TS), prewrite_key=b"key", prewrite_value=value))
    whole[at % len(whole)] = byte
    payload = bytes(whole)
    try:
        expected = fields_of(payload, payload)
    except MalformedBinlog:
        with pytest.raises(MalformedBinlog):
            peek.peek(payload)
        return
    assert peek.peek(payload) == (
        expected.tp,
        expected.start_ts,
        expected.commit_ts,
        expected.ddl_job_id,
    )
    assert as_stored(payload) == encode(expected)


rows = st.lists(st.binary(max_size=200), max_size=6)


@st.composite
def table_mutations(draw: st.DrawFn) -> Mutation:
    inserted, updated, deleted = draw(rows), draw(rows), draw(rows)
    kinds = [0] * len(inserted) + [1] * len(updated) + [4] * len(deleted)
    sequence = bytes(draw(st.permutations(kinds)))
    return Mutation(draw(int64s), inserted, updated, deleted, sequence)


@given(int64s, st.lists(table_mutations(), max_size=4))
def test_row_changes_read_as_betterproto_reads_them(version: int, tables: list[Mutation]) -> None:
    encoded = encode_mutations(version, tables)
    message = pb.PrewriteValue().parse(encoded)
    assert message.schema_version == version
    assert [
        Mutation(
            table.table_id,
            table.inserted_rows,
            table.updated_rows,
            table.deleted_rows,
            bytes(table.sequence),
        )
        for table in message.mutations
    ] == tables
    assert mutations(encoded) == (version, tables)
    # betterproto packs the sequence; a reader takes both forms
    assert mutations(bytes(message)) == (version, tables)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (Mutation(1, [b"r"], [], [], b""), "0 entries of kind 0, the list has 1 rows"),
        (Mutation(1, [], [], [b"r"], b"\x04\x04"), "2 entries of kind 4"),
        (Mutation(1, [], [], [], b"\x02"), "kinds other than 0, 1 and 4"),
    ],
)
def test_a_sequence_that_contradicts_its_rows_is_malformed(table: Mutation, words: str) -> None:
    with pytest.raises(MalformedBinlog, match=words):
        mutations(encode_mutations(1, [table]))


@given(st.binary(max_size=60))
def test_garbage_row_changes_are_read_or_refused(data: bytes) -> None:
    try:
        version, tables = mutations(data)
    except MalformedBinlog:
        return
    assert mutations(encode_mutations(version, tables)) == (version, tables)


def _payloads(recording: str) -> Iterator[bytes]:
    with gzip.open(RECORDINGS / recording / "binlogs.rec.gz") as file:
        while head := file.read(16):
            yield file.read(struct.unpack("<QII", head)[2])


@pytest.mark.parametrize("recording", ["types", "keys", "ddl"])
def test_every_recorded_payload_reads_as_betterproto_reads_it(recording: str) -> None:
    for payload in _payloads(recording):
        message = pb.Binlog().parse(payload)
        assert as_stored(payload) is payload
        assert peek.peek(payload) == (
            message.tp,
            message.start_ts,
            message.commit_ts,
            message.ddl_job_id,
        )
        if message.prewrite_value:
            version, tables = mutations(message.prewrite_value)
            assert encode_mutations(version, tables) == message.prewrite_value


_TIMESTAMPS = st.integers(1 << 56, (1 << 62) - 1) | st.integers(1, 1 << 62)


@given(
    start_ts=_TIMESTAMPS,
    commit_ts=_TIMESTAMPS,
    other=_TIMESTAMPS,
    is_odd=st.booleans(),
    blob=blobs,
)
def test_only_the_records_of_a_transaction_are_joined_as_it(
    start_ts: int, commit_ts: int, other: int, *, is_odd: bool, blob: bytes
) -> None:
    prewrite = prewrite_binlog(Tso(start_ts), prewrite_value=blob)
    commit = commit_binlog(Tso(start_ts), Tso(commit_ts))
    if is_odd:  # of a client that writes a field twice
        prewrite += b"\x38\x00"
    whole = join(prewrite, commit)
    assert join_of(start_ts, commit_ts, commit, prewrite) == whole
    assert join_of(start_ts, commit_ts, commit, None) == commit
    assert join_of(start_ts, commit_ts, commit, commit) is None
    if other not in (start_ts, commit_ts):
        strange = prewrite_binlog(Tso(other), prewrite_value=blob)
        assert join_of(start_ts, commit_ts, commit, strange) is None
        assert join_of(start_ts, other, commit, prewrite) is None
        assert join_of(start_ts, other, commit, None) is None
        strange = commit_binlog(Tso(other), Tso(commit_ts))
        assert join_of(start_ts, commit_ts, strange, prewrite) is None


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("SELECT SETVAL(`a`.`s`, 1000);", True),
        ("  select setval(`s`, 1)", True),
        ("CREATE TABLE `select setval` (a INT)", False),
    ],
)
def test_setval_is_no_ddl(query: str, *, answer: bool) -> None:
    payload = prewrite_binlog(Tso(1), ddl_query=query.encode(), ddl_job_id=5)
    told = peek.ddl(payload)
    assert told is not None
    assert (told.query, told.is_setval) == (query, answer)


def test_rows_are_no_ddl() -> None:
    assert peek.ddl(prewrite_binlog(Tso(1), prewrite_value=b"\x08\x01")) is None
    assert peek.ddl(prewrite_binlog(Tso(1)) + b"\x48\x01") is None  # with an unknown field
