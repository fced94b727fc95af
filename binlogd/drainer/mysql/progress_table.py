"""The statements about the progress rows, and about the shapes that are noted beside them.

Invariant. Two Drainers at one downstream, and a downstream that went back, are found out: a lane's
row is moved from the very value that this process wrote before, or not at all, and no checkpoint is
saved and no DDL begun or ended without a look at all of them, in the same transaction
(`mysql.store`). What the rows mean: `rows.progress`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from binlogd.drainer.rows.progress import (
    DDL_LANE,
    OWNER_LANE,
    REPEATED_LANE,
    SAVED_LANE,
    TABLE_NAME,
    LanePosition,
    PendingDdl,
    Row,
)
from binlogd.drainer.sql import qualified, quoted
from binlogd.tso import Tso

SHAPES_NAME = "shapes"


class ProgressTable:
    """The statements about the progress rows of one upstream cluster."""

    def __init__(self, schema: str, cluster_id: int) -> None:
        self._table = qualified(schema, TABLE_NAME)
        self._shapes = qualified(schema, SHAPES_NAME)
        self._of_cluster = b" WHERE cluster_id = %d" % cluster_id
        self._cluster_id = cluster_id

    def create(self) -> bytes:
        """Makes the table unless it is there."""
        return (
            b"CREATE TABLE IF NOT EXISTS " + self._table + b" (cluster_id BIGINT UNSIGNED NOT NULL,"
            b" lane INT NOT NULL, lanes INT NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL,"
            b" piece BIGINT NOT NULL, session_id BIGINT UNSIGNED NOT NULL DEFAULT 0,"
            b" note VARCHAR(255) NOT NULL DEFAULT '', PRIMARY KEY (cluster_id, lane))"
        )

    def read(self) -> bytes:
        """All rows of the cluster, as `Row`, once whoever is about to change them has ended."""
        return self.look() + b" FOR UPDATE"

    def look(self) -> bytes:
        """All rows of the cluster, as `Row`."""
        columns = b"lane, lanes, commit_ts, piece, session_id, note"
        return b"SELECT " + columns + b" FROM " + self._table + self._of_cluster

    def read_lane(self, lane: int) -> bytes:
        """commit_ts and piece of a lane, once whoever is about to change it has ended."""
        return b"SELECT commit_ts, piece FROM " + self._table + self._where(lane) + b" FOR UPDATE"

    def move(self, lane: int, lanes: int, before: LanePosition, after: LanePosition) -> bytes:
        """Moves a lane on, one of so many. Affects one row, or none if the row is not where we left
        it, or is of another layout, in which the lane has other keys."""
        return (
            b"UPDATE "
            + self._table
            + b" SET commit_ts = %d, piece = %d" % after
            + self._where(lane)
            + b" AND lanes = %d AND commit_ts = %d AND piece = %d" % (lanes, *before)
        )

    def lay_out(self, positions: Sequence[LanePosition]) -> tuple[bytes, ...]:
        """Replaces all lanes; to be run in one transaction."""
        values = (
            b"(%d,%d,%d,%d,%d)" % (self._cluster_id, lane, len(positions), *position)
            for lane, position in enumerate(positions)
        )
        return (
            b"DELETE FROM " + self._table + self._of_cluster + b" AND lane >= 0",
            b"INSERT INTO %b (cluster_id, lane, lanes, commit_ts, piece) VALUES %b"
            % (self._table, b",".join(values)),
        )

    def begin_ddl(self, ddl: PendingDdl) -> bytes:
        """Notes that a DDL is begun, or how far it has come."""
        commit_ts, step, session_id, before, part = ddl
        return self._put((DDL_LANE, part, commit_ts, step, session_id, before))

    def end_ddl(self) -> bytes:
        """Takes the note away."""
        return b"DELETE FROM " + self._table + self._where(DDL_LANE)

    def saved(self, commit_ts: Tso) -> bytes:
        """Notes the commit_ts of the checkpoint that is saved by the same transaction."""
        return self._put((SAVED_LANE, 0, commit_ts, 0, 0, ""))

    def noted(self) -> bytes:
        """The commit_ts that `saved` noted."""
        return b"SELECT commit_ts FROM " + self._table + self._where(SAVED_LANE)

    def repeated(self, commit_ts: Tso) -> bytes:
        """Notes up to where the data may hold already what is written to it."""
        return self._put((REPEATED_LANE, 0, commit_ts, 0, 0, ""))

    def owner(self) -> bytes:
        """Which pipeline keeps it, once whoever is about to change that has ended."""
        return b"SELECT note FROM " + self._table + self._where(OWNER_LANE) + b" FOR UPDATE"

    def owned(self, note: str) -> bytes:
        """Says which pipeline keeps it."""
        return self._put((OWNER_LANE, 0, 0, 0, 0, note))

    def set_to(self, commit_ts: Tso) -> tuple[bytes, ...]:
        """Everything begins anew behind commit_ts; to be run in one transaction."""
        return (
            *self.lay_out([LanePosition(commit_ts)]),
            self.forget_shapes(),
            self.end_ddl(),
            self.saved(commit_ts),
        )

    def create_shapes(self) -> bytes:
        """Makes the table for the shapes of tables, unless it is there."""
        return (
            b"CREATE TABLE IF NOT EXISTS " + self._shapes + b" (cluster_id BIGINT UNSIGNED NOT"
            b" NULL, table_id BIGINT NOT NULL, shape TEXT NOT NULL, PRIMARY KEY (cluster_id,"
            b" table_id))"
        )

    def shapes(self) -> bytes:
        """All that are noted: id of the table and shape."""
        return b"SELECT table_id, shape FROM " + self._shapes + self._of_cluster

    def shape(self, table_id: int) -> bytes:
        """That of a table, locked."""
        where = self._of_cluster + b" AND table_id = %d FOR UPDATE" % table_id
        return b"SELECT shape FROM " + self._shapes + where

    def note_shape(self, table_id: int, shape: str) -> bytes:
        """Notes one."""
        row = self._shapes, self._cluster_id, table_id, quoted(shape.encode())
        return b"REPLACE INTO %b VALUES (%d, %d, %b)" % row

    def forget_shapes(self, table_ids: Sequence[int] | None = None) -> bytes:
        """Forgets those of some tables, or all."""
        ids = b",".join(b"%d" % each for each in table_ids or ()) or b"0"
        those = b" AND table_id IN (%b)" % ids if table_ids is not None else b""
        return b"DELETE FROM " + self._shapes + self._of_cluster + those

    def _put(self, row: Row) -> bytes:
        columns = self._table, self._cluster_id, *row[:5], quoted(row[5].encode())
        return b"REPLACE INTO %b VALUES (%d, %d, %d, %d, %d, %d, %b)" % columns

    def _where(self, lane: int) -> bytes:
        return self._of_cluster + b" AND lane = %d" % lane


def lanes_of(rows: Iterable[Row]) -> list[LanePosition]:
    """Where the lanes stand, in their order."""
    found = sorted((row[0], row[2], row[3]) for row in rows if row[0] >= 0)
    return [LanePosition(Tso(commit_ts), piece) for _, commit_ts, piece in found]
