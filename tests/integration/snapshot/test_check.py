"""`binlogd exports` and `binlogd export --check`: what is told of snapshots, whole and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from binlogd.cli import command_line
from binlogd.errors import ConfigError
from binlogd.snapshot.check import check
from binlogd.snapshot.formats.file_kinds import FileKind, quoted
from binlogd.snapshot.publishing.publish import read_manifest, remove_surplus
from tests.support.limits import COLUMNS
from tests.support.mariadb import MariaDb
from tests.support.snapshots import Columns, snapshot

ROWS: Columns = [(1, "id", pa.array([1, 2, 3])), (2, "name", pa.array(["a", None, "c"]))]


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line(words), words, env={"COLUMNS": "200"})
    if isinstance(done.exception, ConfigError):
        raise done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["parquet", "orc", "csv", "json"])
def test_a_whole_snapshot_is_good(name: str, tmp_path: Path) -> None:
    columns = [(at, each.name, each.values) for at, each in enumerate(COLUMNS, 1)]
    types = [each.mysql for each in COLUMNS]
    path, _ = snapshot(tmp_path, 100, columns, kind=FileKind(name), mysql_types=types)
    code, said = command("export", "--check", str(path))
    assert (code, "1 of 1 tables are whole" in said) == (0, True)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def add(file: Path) -> None:
    file.with_name("more.parquet").touch()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (Path.unlink, "is missing"),
        (cut, "bytes, the manifest says"),
        (flip, "has changed: its SHA-256 is"),
        (add, "files that the manifest does not name: shop.t/more.parquet"),
    ],
    ids=["missing", "cut", "flipped", "surplus"],
)
def test_a_damaged_snapshot_is_told(
    damage: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    path, described = snapshot(tmp_path, 100, ROWS)
    damage(path / described.tables[0].files[0].name)
    code, said = command("export", "--check", str(path), "--json")
    reasons = [json.loads(line)["reason"] for line in said.splitlines()]
    assert code == 1
    assert any(reason in each for each in reasons)


def test_rows_that_are_not_those_of_the_manifest_are_told(tmp_path: Path) -> None:
    path, described = snapshot(tmp_path, 100, ROWS)
    other, _ = snapshot(tmp_path, 200, [ROWS[0], (2, "name", pa.array(["a", None, "d"]))])
    (entry,) = described.tables
    theirs = read_manifest(other).tables[0].files[0]
    (path / entry.files[0].name).write_bytes((other / theirs.name).read_bytes())
    text = (path / "manifest.json").read_text()
    size = entry.files[0].size_bytes
    text = text.replace(entry.files[0].sha256, theirs.sha256)
    (path / "manifest.json").write_text(text.replace(f": {size}", f": {theirs.size_bytes}"))
    (found,) = check(path, read_manifest(path))
    assert "its rows sum up to another checksum" in found.reason


def test_what_is_no_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no snapshot"):
        command("export", "--check", str(tmp_path))
    with pytest.raises(ConfigError, match="--out DIR"):
        command("export")
    with pytest.raises(ConfigError, match="is no directory"):
        command("exports", str(tmp_path / "none"))


def test_exports_are_listed_and_the_latest_few_are_kept(tmp_path: Path) -> None:
    config = tmp_path / "binlogd.toml"
    config.write_text(f'[export]\ndir = "{tmp_path}"\n')
    for words in ([str(tmp_path)], ["--out", str(tmp_path)], ["-c", str(config)]):
        said = " ".join(command("exports", *words)[1].split())
        assert f"{tmp_path}: nothing was exported there yet" in said
    for commit_ts in (100, 300, 200):
        snapshot(tmp_path, commit_ts, ROWS)
    (tmp_path / "snapshot-7").mkdir()
    (tmp_path / ".staging-1").mkdir()
    code, said = command("exports", str(tmp_path), "--json")
    listed = json.loads(said)
    assert code == 0
    assert [each["name"] for each in listed["exports"]] == [
        *("snapshot-300", "snapshot-200", "snapshot-100"),
        "snapshot-7",
    ]
    assert [each["is_latest"] for each in listed["exports"]] == [True, False, False, False]
    assert "manifest.json" in listed["exports"][3]["problem"]
    assert listed["unfinished"] == 1
    assert "snapshot-300" in command("exports", str(tmp_path))[1]
    assert [path.name for path in remove_surplus(tmp_path, 2)] == ["snapshot-100"]
    assert (tmp_path / "LATEST").resolve().name == "snapshot-300"


OF_MYSQL = [each for each in COLUMNS if each.name not in ("wall", "day")]
"""Without dates that are none of MySQL's."""


def imported(mariadb: MariaDb, path: Path, format_: str, columns: Columns) -> None:
    """Puts a dump of one table into the server."""
    types = [each.mysql for each in OF_MYSQL]
    defined = ", ".join(
        f"{quoted(name)} {mysql} NULL" for (_, name, _), mysql in zip(columns, types, strict=True)
    )
    begin = ("SET sql_mode = ''", "CREATE DATABASE shop", "USE shop", f"CREATE TABLE t ({defined})")
    (file,) = path.rglob(f"*.{format_}")
    if format_ == "sql":
        mariadb.execute(*begin, *(each for each in file.read_text().split(";\n") if each.strip()))
        return
    places = ", ".join(f"@c{at}" for at in range(len(columns)))
    sets = ", ".join(
        f"{quoted(name)} = "
        + (f"CONVERT(@c{at} USING utf8mb4)" if pa.types.is_string(values.type) else f"@c{at}")
        for at, (_, name, values) in enumerate(columns)
    )
    mariadb.execute(
        *begin,
        "SET time_zone = '+00:00'",
        f"LOAD DATA INFILE '{file}' INTO TABLE t CHARACTER SET binary FIELDS TERMINATED BY ','"
        " ENCLOSED BY '\"' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' IGNORE 1 LINES"
        f" ({places}) SET {sets}",
    )


@pytest.mark.parametrize("format_", ["sql", "csv"])
def test_a_snapshot_is_compared_with_a_live_server(
    format_: str, tmp_path: Path, mariadb: MariaDb
) -> None:
    columns = [(at, each.name, each.values) for at, each in enumerate(OF_MYSQL, 1)]
    types = [each.mysql for each in OF_MYSQL]
    path, _ = snapshot(tmp_path, 100, columns, mysql_types=types)
    kind = FileKind(format_, "dumpling")
    dump, _ = snapshot(tmp_path, 200, columns, kind=kind, mysql_types=types)
    imported(mariadb, dump, format_, columns)
    url = f"mysql://{mariadb.user}@{mariadb.host}:{mariadb.port}"
    words = ("export", "--check", str(path), "--against", url, "--json")
    code, said = command(*words)
    (_, verdict) = map(json.loads, said.splitlines())
    assert (code, verdict["reason"]) == (0, ""), said
    assert verdict["left_out"] == ["single", "double", "doc", "label"]
    mariadb.execute("UPDATE shop.t SET text = 'other' WHERE text = ''")
    code, said = command(*words)
    verdict = json.loads(said.splitlines()[1])
    assert (code, verdict["reason"]) == (1, "has other values")
    assert [each.rpartition(": ")[2] for each in verdict["differences"]] == [
        "only the snapshot has it",
        "only the server has it",
    ]
    assert "text='other'" in verdict["differences"][1]
    mariadb.execute("DELETE FROM shop.t WHERE text = 'other'")
    code, said = command(*words)
    assert json.loads(said.splitlines()[1])["reason"] == "has 4 rows, the snapshot 5"


def test_rows_that_differ_are_told_by_their_keys(tmp_path: Path, mariadb: MariaDb) -> None:
    numbers = list(range(30))
    columns: Columns = [
        (1, "id", pa.array(numbers)),
        (2, "word", pa.array([f"w{number}" for number in numbers])),
        (3, "at", pa.array([None] * 30, pa.timestamp("us"))),
    ]
    types = ["bigint", "varchar(9)", "datetime"]
    path, _ = snapshot(tmp_path, 100, columns, mysql_types=types, primary_key=("id",))
    rows = ", ".join(f"({number}, 'w{number}')" for number in numbers)
    mariadb.execute(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id BIGINT PRIMARY KEY, word VARCHAR(9), at DATETIME)",
        f"INSERT INTO shop.t (id, word) VALUES {rows}",
        "UPDATE shop.t SET word = 'x', at = '2020-01-01' WHERE id = 7",
        "DELETE FROM shop.t WHERE id = 8",
        "INSERT INTO shop.t (id) VALUES (88)",
    )
    url = f"mysql://{mariadb.user}@{mariadb.host}:{mariadb.port}"
    code, said = command("export", "--check", str(path), "--against", url)
    assert code == 1
    assert (
        "shop.t: id=7: word is 'x' there, 'w7' in the snapshot;"
        " at is 2020-01-01 00:00:00 there, NULL in the snapshot" in said
    )
    assert "shop.t: id=8: only the snapshot has it" in said
    assert "shop.t: id=88: only the server has it" in said
    mariadb.execute("DELETE FROM shop.t WHERE id < 20")
    assert "and 11 more" in command("export", "--check", str(path), "--against", url)[1]
