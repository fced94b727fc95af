"""Rows of Dumpling's files, whatever stands in them and wherever a piece of the file ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlogd.errors import ConfigError, Corrupt, CorruptRow
from binlogd.snapshot.bases import dump_rows
from binlogd.snapshot.bases.dump import DumpFile, is_dump, read_dump
from binlogd.snapshot.bases.dump_rows import rows_of, says_utc
from binlogd.snapshot.writing.adapt import reader_of, time_zone
from binlogd.tidb.kinds import Tp
from binlogd.tidb.model import Column, FieldType
from binlogd.tso import Tso
from tests.support.dumps import write_metadata, write_table

NUMBER = Column(1, "id", 0, FieldType(Tp.LONGLONG))
TEXT = Column(2, "te`xt", 1, FieldType(Tp.VARCHAR, charset="utf8mb4"))
BYTES = Column(3, "bytes", 2, FieldType(Tp.BLOB, charset="binary"))
COLUMNS = (NUMBER, TEXT, BYTES)


def read(directory: Path, name: tuple[str, str]) -> list[list[bytes | None]]:
    files = read_dump(directory).files[name]
    return [row for file in files for rows in rows_of(str(directory), file, 5) for row in rows.rows]


values = st.tuples(
    st.integers(-5, 5),
    st.none() | st.text().map(str.encode) | st.sampled_from([b"it's", b'a""b', b"\\N", b"NULL"]),
    st.none() | st.binary(max_size=9),
)


@pytest.mark.parametrize("kind", ["sql", "csv"])
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(values, min_size=1, max_size=20), piece=st.sampled_from([1, 7, 1 << 20]))
def test_rows_come_out_as_they_went_in(
    kind: str,
    rows: list[tuple[int, bytes | None, bytes | None]],
    piece: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in tmp_path.iterdir():
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(dump_rows, "PIECE_BYTES", piece)
        write_metadata(tmp_path, Tso(77))
        write_table(tmp_path, ("shop", "T"), COLUMNS, rows, kind=kind, is_packed=piece == 7)
        assert read(tmp_path, ("shop", "t")) == [[b"%d" % each[0], *each[1:]] for each in rows]


def test_columns_are_named_where_the_file_names_them(tmp_path: Path) -> None:
    file = tmp_path / "a.t.sql"
    file.write_bytes(
        b"/*!40103 SET TIME_ZONE='+00:00' */;\nINSERT INTO `t` (`a`,`b``)`) VALUES\n(1,'x'),"
        b"( -2.5 , NULL );\nINSERT INTO `t` (`a`,`b``)`) VALUES (3,'');\n"
    )
    found = list(rows_of(str(tmp_path), DumpFile("a.t.sql", is_csv=False), 100))
    assert [each.names for each in found] == [["a", "b`)"]] * 2
    assert [row for each in found for row in each.rows] == [
        [b"1", b"x"],
        [b"-2.5", None],
        [b"3", b""],
    ]
    assert says_utc(str(tmp_path), DumpFile("a.t.sql", is_csv=False))


@pytest.mark.parametrize(
    "content", [b"INSERT INTO `t` VALUES (1,", b"INSERT INTO `t` VALUES (1,'x", b"DROP TABLE t;"]
)
def test_a_cut_file_is_named_with_its_place(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.t.sql").write_bytes(content)
    with pytest.raises(Corrupt, match=r"a\.t\.sql at offset \d+"):
        list(rows_of(str(tmp_path), DumpFile("a.t.sql", is_csv=False), 100))


STAMP = Column(4, "at", 3, FieldType(Tp.TIMESTAMP, decimal=3))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"2024-07-01 12:00:00.250", "2024-07-01 10:00:00.250"),
        (b"2024-12-01 12:00:00.25", "2024-12-01 11:00:00.250"),
        (b"2024-10-27 01:59:59", "2024-10-26 23:59:59.000"),
        (b"2024-10-27 03:00:00", "2024-10-27 02:00:00.000"),
        (b"0000-00-00 00:00:00.000", "0000-00-00 00:00:00.000"),
    ],
)
def test_an_instant_is_read_in_the_zone_of_the_dump(text: bytes, wanted: str) -> None:
    assert reader_of(STAMP, time_zone("Europe/Berlin"))(text) == wanted
    assert reader_of(STAMP, time_zone("Europe/Berlin"))(None) is None


@pytest.mark.parametrize("text", [b"2024-10-27 02:30:00", b"2024-03-31 02:30:00"])
def test_a_time_that_a_zone_has_twice_or_never_is_not_guessed(text: bytes) -> None:
    with pytest.raises(CorruptRow, match=r"column at of the dump: .* in Europe/Berlin"):
        reader_of(STAMP, time_zone("Europe/Berlin"))(text)
    for zone in ("UTC", "+01:00"):
        assert reader_of(STAMP, time_zone(zone))(text) is not None


def test_a_dump_is_told_by_its_metadata(tmp_path: Path) -> None:
    assert not is_dump(tmp_path)
    write_metadata(tmp_path, Tso(4711))
    with pytest.raises(ConfigError, match="no tables"):
        read_dump(tmp_path)
    write_table(tmp_path, ("a%2Eb", "c"), COLUMNS, [])
    assert is_dump(tmp_path)
    found = read_dump(tmp_path)
    assert found.commit_ts == 4711
    assert found.tables == {("a.b", "c")}
    assert found.files == {}
    (tmp_path / "metadata").write_text("SHOW MASTER STATUS:\n\tLog: bin.000001\n\tPos: 4\n")
    with pytest.raises(ConfigError, match="only a dump of TiDB"):
        read_dump(tmp_path)
