"""DDL: taken apart without loss, and rewritten in bounded time, or UnsupportedDdl."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator

from binlogd.drainer.ddl.comments import (
    TwoReadings,
    check_escapes,
    with_names_quoted,
    without_comments,
)
from binlogd.drainer.ddl.edits import Dialect, alter_parts, edited, split, without_foreign_keys
from binlogd.drainer.ddl.explicit import explicit_table, with_escapes, with_timestamps_in_utc
from binlogd.drainer.ddl.marks import with_long_text, with_marked_words
from binlogd.drainer.ddl.names import name_of
from binlogd.drainer.messages.named import NamedDdl
from binlogd.drainer.messages.pb import without_use
from binlogd.errors import UnsupportedDdl
from binlogd.tidb.ddl_text import (
    changed_columns,
    escaped,
    renamed_tables,
    words,
    words_and_comments,
    words_and_marks,
)
from tests.fuzz.tables import TABLES
from tests.support.recordings_reader import RECORDINGS


def seeds() -> Iterator[bytes]:
    """DDL of the recordings, each sentence once by its first words."""
    seen = set()
    for name in ("ddl", "mixed"):
        jobs = json.loads(gzip.decompress((RECORDINGS / name / "ddl_history.json.gz").read_bytes()))
        for job in jobs:
            query = job.get("query") or ""
            key = (*tuple(query.split()[:4:3]), len(query) // 80)
            if query and key not in seen and len(query) < 700:
                seen.add(key)
                yield query.encode()
    yield b"CREATE TABLE a (b INT /*T![auto_rand] AUTO_RANDOM(5) */, CHECK (b > 1) NOT ENFORCED)"
    yield b"CREATE TABLE `a` (b INT) /*!90000 SHARD_ROW_ID_BITS=4 */ ENGINE = 'x';"
    yield b"ALTER TABLE a ADD COLUMN (b INT, c TEXT DEFAULT ('x')), ADD INDEX ((lower(b)))"
    yield b"CREATE VIEW v AS SELECT 'a\\'b' -- c\n FROM t"


def run(data: bytes) -> None:
    """One statement."""
    text = data.decode("utf-8", "surrogateescape")
    for taken in (words(text), words_and_marks(text), words_and_comments(text)):
        ends = 0
        for each in taken:
            assert ends <= each.begin < each.end <= len(text)
            ends = each.end
    for look in (renamed_tables, changed_columns, escaped, without_use, split):
        look(text)
    name_of(NamedDdl("d", text))
    for rewrite in _REWRITES:
        try:
            found = rewrite(text)
        except (TwoReadings, UnsupportedDdl):
            continue
        if isinstance(found, str):
            assert len(found) <= 400 + 40 * len(text)


_REWRITES: tuple[Callable[[str], object], ...] = (
    without_comments,
    with_names_quoted,
    check_escapes,
    alter_parts,
    without_foreign_keys,
    lambda text: with_marked_words(text, []),
    lambda text: with_long_text(text, ["c1"]),
    lambda text: with_escapes(text, text),
    lambda text: explicit_table(text, TABLES[0].info),
    lambda text: with_timestamps_in_utc(text, TABLES[0].info),
    lambda text: edited(text, Dialect.MYSQL, []),
    lambda text: edited(text, Dialect.FILE, []),
    lambda text: edited(text, Dialect.TIDB, []),
)
