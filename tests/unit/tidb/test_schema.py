"""Which table a row belongs to, DDL by DDL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from binlogd.errors import Corrupt
from binlogd.tidb.known_tables import Effect, Named, is_reserved
from binlogd.tidb.model import (
    ActionType,
    Column,
    Database,
    FieldType,
    Job,
    JobState,
    SchemaState,
    Table,
    Tp,
    job_from_json,
    table_to_json,
)
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso

INT = FieldType(Tp.LONG)


def table(table_id: int, name: str, *columns: str, partitions: Sequence[int] = ()) -> Table:
    """Columns as `id name`, or `name` for ids from 1 on."""
    made = []
    for offset, text in enumerate(columns or ("id", "v")):
        number, _, word = text.rpartition(" ")
        made.append(Column(int(number or offset + 1), word, offset, INT))
    return Table(table_id, name, tuple(made), partition_ids=tuple(partitions))


class Upstream:
    """Makes jobs with rising ids and versions, and applies them as their binlogs would."""

    def __init__(self) -> None:
        self.tracker = SchemaTracker()
        self.version = 0
        self.apply(ActionType.CREATE_SCHEMA, 2, database=Database(2, "shop"))

    def job(self, kind: ActionType, schema_id: int, table_id: int = 0, **facts: object) -> Job:
        self.version += 1
        given = {
            "id": 1000 + self.version,
            "type": kind,
            "schema_id": schema_id,
            "table_id": table_id,
            "state": JobState.SYNCED,
            "schema_version": self.version,
            "start_ts": 10 * self.version,
            "finished_ts": 10 * self.version + 5,
            **facts,
        }
        return replace(job_from_json(b"{}"), **given)  # type: ignore[arg-type]  # any of its fields

    def apply(self, kind: ActionType, schema_id: int, table_id: int = 0, **facts: object) -> Effect:
        return self.tracker.apply(self.job(kind, schema_id, table_id, **facts), SchemaState.NONE)

    def create(self, info: Table, schema_id: int = 2) -> Effect:
        return self.apply(ActionType.CREATE_TABLE, schema_id, info.id, table=info)

    def name(self, table_id: int) -> str | None:
        """What rows with that id go to now, as `database.table`."""
        at = self.tracker.table_at(table_id, self.version)
        return f"{at.database}.{at.info.name}" if at else None


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


def test_a_table_is_known_from_its_creation_on(upstream: Upstream) -> None:
    assert upstream.tracker.table_at(10, 99) is None
    effect = upstream.create(table(10, "Orders"))
    assert effect == Effect(True, Named("shop", "Orders"), (Named("shop", "Orders"),))
    assert upstream.name(10) == "shop.Orders"
    assert upstream.tracker.find("SHOP", "orders") == Named("shop", "Orders")
    assert upstream.tracker.find("shop", "") == Named("shop")
    assert upstream.tracker.find("shop", "other") is None


def test_mysql_is_there_without_a_job(upstream: Upstream) -> None:
    upstream.create(table(5, "user"), schema_id=1)
    assert upstream.name(5) == "mysql.user"


def test_the_answer_is_the_same_object_while_nothing_changes(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.create(table(11, "b"))
    before = upstream.tracker.table_at(10, 3)
    upstream.apply(ActionType.ADD_COLUMN, 2, 11, table=table(11, "b", "id", "v", "w"))
    assert upstream.tracker.table_at(10, 3) is before
    assert upstream.tracker.table_at(10, upstream.version) is before
    upstream.apply(ActionType.ADD_COLUMN, 2, 10, table=table(10, "a", "id", "v", "w"))
    assert upstream.tracker.table_at(10, 3) is not before


def test_rows_of_an_older_version_may_lack_columns(upstream: Upstream) -> None:
    old = table(10, "a")
    upstream.create(old)
    written_at = upstream.version
    upstream.apply(ActionType.ADD_COLUMN, 2, 10, table=table(10, "a", "id", "v", "w"))
    late = upstream.tracker.table_at(10, written_at)
    assert late is not None
    assert (late.may_lack_columns, late.defaults_from, len(late.info.columns)) == (True, old, 3)
    current = upstream.tracker.table_at(10, upstream.version)
    assert current is not None
    assert (current.may_lack_columns, current.defaults_from) == (False, None)


def test_dropping_a_table_makes_its_id_gone_but_no_error(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    effect = upstream.apply(ActionType.DROP_TABLE, 2, 10, table=table(10, "a"))
    gone = (Named("shop", "a"), table(10, "a"))
    assert effect == Effect(True, Named("shop", "a"), dropped=(gone,))
    assert upstream.name(10) is None
    assert upstream.tracker.is_truncated(10)
    assert not upstream.tracker.is_truncated(11)


def test_truncating_gives_the_table_a_new_id(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    effect = upstream.apply(ActionType.TRUNCATE_TABLE, 2, 10, table=table(20, "a"))
    assert effect.name == Named("shop", "a")
    assert (upstream.name(10), upstream.name(20)) == (None, "shop.a")
    assert upstream.tracker.is_truncated(10)


def test_partitioning_a_table_gives_it_a_new_id(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.apply(
        ActionType.ALTER_TABLE_PARTITIONING, 2, 10, table=table(20, "a", partitions=[21, 22])
    )
    assert (upstream.name(10), upstream.name(20)) == (None, "shop.a")


@pytest.mark.parametrize(
    "kind",
    [
        ActionType.TRUNCATE_TABLE_PARTITION,
        ActionType.REORGANIZE_PARTITION,
        ActionType.ADD_TABLE_PARTITION,
        ActionType.DROP_TABLE_PARTITION,
        ActionType.ADD_INDEX,
        ActionType.MODIFY_COLUMN,
        ActionType.MULTI_SCHEMA_CHANGE,
        ActionType.MODIFY_TABLE_COMMENT,
        ActionType.REBASE_AUTO_ID,
        200,  # an action of a newer TiDB
    ],
)
def test_whatever_leaves_a_table_info_replaces_the_table(
    upstream: Upstream, kind: ActionType
) -> None:
    upstream.create(table(10, "a", partitions=[11, 12]))
    after = table(10, "a", "id", "v", "w", partitions=[11, 13])
    assert upstream.apply(kind, 2, 10, table=after).name == Named("shop", "a")
    at = upstream.tracker.table_at(10, upstream.version)
    assert at is not None
    assert at.info == after


def test_dropping_a_database_takes_its_tables_with_it(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.apply(ActionType.DROP_SCHEMA, 2, database=Database(2, "shop"))
    assert upstream.name(10) is None
    assert upstream.tracker.is_truncated(10)
    upstream.apply(ActionType.CREATE_SCHEMA, 3, database=Database(3, "shop"))
    upstream.create(table(11, "a"), schema_id=3)
    assert upstream.name(11) == "shop.a"


def test_flashback_database_brings_its_tables_back_from_its_arguments(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.apply(ActionType.DROP_SCHEMA, 2)
    info = msgspec.json.decode(table_to_json(table(10, "a")))
    effect = upstream.apply(
        ActionType.RECOVER_SCHEMA,
        2,
        database=Database(2, "shop_back"),
        raw_args=[{"RecoverTabsInfo": [{"TableInfo": info}]}, 1],
    )
    assert effect.created == (Named("shop_back"), Named("shop_back", "a"))
    assert upstream.name(10) == "shop_back.a"
    assert not upstream.tracker.is_truncated(10)


def test_recover_table_makes_a_dropped_id_live_again(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.apply(ActionType.DROP_TABLE, 2, 10)
    upstream.apply(ActionType.RECOVER_TABLE, 2, 10, table=table(10, "a_back"))
    assert upstream.name(10) == "shop.a_back"
    assert not upstream.tracker.is_truncated(10)


def test_rename_moves_a_table_to_another_database(upstream: Upstream) -> None:
    upstream.apply(ActionType.CREATE_SCHEMA, 3, database=Database(3, "attic"))
    upstream.create(table(10, "a"))
    effect = upstream.apply(ActionType.RENAME_TABLE, 3, 10, table_name="a", table=table(10, "b"))
    assert effect.renamed == ((Named("shop", "a"), Named("attic", "b")),)
    assert effect.name == Named("attic", "b")
    assert upstream.name(10) == "attic.b"


def test_rename_tables_swaps_by_a_third_name_in_order(upstream: Upstream) -> None:
    upstream.create(table(10, "left"))
    upstream.create(table(11, "right"))
    effect = upstream.apply(
        ActionType.RENAME_TABLES,
        2,
        10,
        query="rename table `left` to swap, `right` to `left`, swap to `right`",
        table=table(10, "right"),
        tables=(table(10, "swap"), table(11, "left"), table(10, "right")),
    )
    assert [(old.table, new.table) for old, new in effect.renamed] == [
        ("left", "swap"),
        ("right", "left"),
        ("swap", "right"),
    ]
    assert (upstream.name(10), upstream.name(11)) == ("shop.right", "shop.left")
    upstream.apply(ActionType.DROP_TABLE, 2, 11)
    assert upstream.tracker.find("shop", "right") == Named("shop", "right")


def test_rename_tables_takes_the_databases_from_the_text(upstream: Upstream) -> None:
    upstream.apply(ActionType.CREATE_SCHEMA, 3, database=Database(3, "Attic"))
    for number, name in enumerate(["a", "b", "c"], start=10):
        upstream.create(table(number, name))
    upstream.apply(
        ActionType.RENAME_TABLES,
        3,
        12,
        query="RENAME TABLE a TO attic.a, b TO b2, shop.c TO `attic`.`c2`;",
        tables=(table(10, "a"), table(11, "b2"), table(12, "c2")),
    )
    assert [upstream.name(n) for n in (10, 11, 12)] == ["Attic.a", "shop.b2", "Attic.c2"]


def test_after_exchange_partition_the_plain_table_has_the_partitions_id(
    upstream: Upstream,
) -> None:
    upstream.create(table(20, "parts", partitions=[21, 22]))
    upstream.create(table(10, "plain"))
    effect = upstream.apply(
        ActionType.EXCHANGE_TABLE_PARTITION,
        2,
        10,
        table=table(20, "parts", partitions=[21, 10]),
    )
    assert (effect.name, effect.other) == (Named("shop", "parts"), Named("shop", "plain"))
    assert (upstream.name(22), upstream.name(20)) == ("shop.plain", "shop.parts")
    assert upstream.name(10) is None
    assert not upstream.tracker.is_truncated(10)
    upstream.apply(  # and back
        ActionType.EXCHANGE_TABLE_PARTITION,
        2,
        22,
        table=table(20, "parts", partitions=[21, 22]),
    )
    assert (upstream.name(10), upstream.name(22)) == ("shop.plain", None)


def test_a_batch_of_tables_is_created_as_a_whole(upstream: Upstream) -> None:
    effect = upstream.apply(ActionType.CREATE_TABLES, 2, tables=(table(10, "a"), table(11, "b")))
    assert effect.created == (Named("shop", "a"), Named("shop", "b"))
    assert (upstream.name(10), upstream.name(11)) == ("shop.a", "shop.b")


def test_create_or_replace_view_drops_the_view_of_that_name(upstream: Upstream) -> None:
    upstream.apply(ActionType.CREATE_VIEW, 2, 10, table=replace(table(10, "V"), is_view=True))
    upstream.apply(ActionType.CREATE_VIEW, 2, 11, table=replace(table(11, "v"), is_view=True))
    assert [info.id for _, info in upstream.tracker.tables()] == [11]


@pytest.mark.parametrize(
    "kind",
    [
        ActionType.CREATE_PLACEMENT_POLICY,
        ActionType.DROP_RESOURCE_GROUP,
        ActionType.LOCK_TABLE,
    ],
)
def test_ids_of_policies_and_groups_are_not_ids_of_schemas(
    upstream: Upstream, kind: ActionType
) -> None:
    upstream.create(table(10, "a"))
    effect = upstream.apply(kind, 2, schema_name="policy")
    assert (effect.is_in_force, effect.name) == (False, Named(""))
    assert upstream.name(10) == "shop.a"


@pytest.mark.parametrize(
    "facts",
    [
        {"state": JobState.ROLLBACK_DONE},
        {"state": JobState.CANCELLED},
        {"schema_version": 0},
    ],
)
def test_what_was_rolled_back_or_has_no_version_has_no_effect(
    upstream: Upstream, facts: dict[str, int]
) -> None:
    upstream.create(table(10, "a"))
    after = table(10, "a", "id", "v", "w")
    effect = upstream.apply(ActionType.ADD_COLUMN, 2, 10, table=after, **facts)
    assert not effect.is_in_force
    at = upstream.tracker.table_at(10, upstream.version)
    assert at is not None
    assert len(at.info.columns) == 2


@pytest.mark.parametrize("final_state", [JobState.SYNCED, JobState.ROLLBACK_DONE])
def test_an_announced_drop_column_lets_rows_lack_it_until_it_is_over(
    upstream: Upstream, final_state: JobState
) -> None:
    upstream.create(table(10, "a", "id", "v", "w"))
    job = upstream.job(
        ActionType.DROP_COLUMN, 2, 10, table=table(10, "a", "id", "v"), state=final_state
    )

    def may_lack() -> bool:
        at = upstream.tracker.table_at(10, upstream.version)
        assert at is not None
        return at.may_lack_columns

    assert not may_lack()
    assert not upstream.tracker.apply(job, SchemaState.DELETE_ONLY).is_in_force
    assert may_lack()
    upstream.tracker.apply(job, SchemaState.DELETE_ONLY)  # a step that was retried
    upstream.tracker.apply(job, SchemaState.NONE)
    assert not may_lack()


def test_the_coming_job_explains_rows_that_run_ahead_of_it(upstream: Upstream) -> None:
    upstream.create(table(10, "t", "1 id", "2 a", "3 b", "4 gone"))
    before = upstream.version
    upstream.version += 5  # the steps of the job have versions of their own
    job = upstream.job(
        ActionType.MULTI_SCHEMA_CHANGE,
        2,
        10,
        query="alter table t change b `B``2` int, modify a bigint, add n int, drop column gone",
        table=table(10, "t", "1 id", "9 a", "8 B`2", "7 n"),
        start_ts=10 * before + 6,
    )
    upstream.tracker.load([job])
    ahead = upstream.tracker.table_at(10, before + 3)
    assert ahead is not None
    assert ahead.aliases == {9: 2, 8: 3}
    assert ahead.may_lack_columns
    assert ahead.info.columns[1].name == "a"
    upstream.tracker.apply(job, SchemaState.NONE)
    after = upstream.tracker.table_at(10, upstream.version)
    assert after is not None
    assert (after.aliases, after.may_lack_columns) == ({}, False)


def test_rows_from_before_a_job_was_submitted_do_not_see_it(upstream: Upstream) -> None:
    created = upstream.job(ActionType.CREATE_TABLE, 2, 10, table=table(10, "t", "1 id", "2 a"))
    rewritten = upstream.job(ActionType.MODIFY_COLUMN, 2, 10, table=table(10, "t", "1 id", "3 a"))
    upstream.tracker.load([rewritten, created])
    upstream.tracker.apply(created, SchemaState.NONE)
    early = upstream.tracker.table_at(10, created.schema_version)
    ahead = upstream.tracker.table_at(10, rewritten.schema_version)
    assert early is not None
    assert ahead is not None
    assert (early.aliases, early.may_lack_columns) == ({}, False)
    assert (ahead.aliases, ahead.may_lack_columns) == ({3: 2}, True)


def test_concurrent_ddl_takes_effect_in_the_order_of_its_binlogs(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.create(table(11, "b"))
    first = upstream.job(ActionType.ADD_COLUMN, 2, 10, table=table(10, "a", "id", "v", "w"))
    second = upstream.job(ActionType.ADD_COLUMN, 2, 11, table=table(11, "b", "id", "v", "w"))
    upstream.tracker.apply(second, SchemaState.NONE)
    upstream.tracker.apply(first, SchemaState.NONE)
    for table_id in (10, 11):
        at = upstream.tracker.table_at(table_id, upstream.version)
        assert at is not None
        assert len(at.info.columns) == 3
    assert upstream.tracker.version == second.schema_version


def history_of_three(upstream: Upstream) -> list[Job]:
    return [
        upstream.job(ActionType.CREATE_SCHEMA, 5, database=Database(5, "late")),
        upstream.job(ActionType.CREATE_TABLE, 5, 50, table=table(50, "t")),
        upstream.job(ActionType.ADD_COLUMN, 5, 50, table=table(50, "t", "id", "v", "w")),
    ]


def test_a_late_start_applies_the_history_up_to_its_moment(upstream: Upstream) -> None:
    jobs = history_of_three(upstream)
    tracker = SchemaTracker()
    tracker.load(reversed(jobs))
    tracker.apply_finished_by(Tso(jobs[1].finished_ts))
    at = tracker.table_at(50, jobs[1].schema_version)
    assert at is not None
    assert (at.database, len(at.info.columns)) == ("late", 2)
    assert tracker.version == jobs[1].schema_version


def test_a_start_without_a_version_places_an_open_job_when_a_row_shows_it(
    upstream: Upstream,
) -> None:
    jobs = history_of_three(upstream)
    tracker = SchemaTracker()
    tracker.load(jobs)
    tracker.apply_finished_by(Tso(jobs[2].start_ts + 1))  # jobs[2] was open then
    before = tracker.table_at(50, jobs[1].schema_version)
    assert before is not None
    assert len(before.info.columns) == 2
    shown = tracker.table_at(50, jobs[2].schema_version)
    assert shown is not None
    assert len(shown.info.columns) == 3


def test_applying_a_job_again_changes_nothing(upstream: Upstream) -> None:
    jobs = history_of_three(upstream)
    tracker = SchemaTracker()
    for job in jobs:
        tracker.apply(job, SchemaState.NONE)
    at = tracker.table_at(50, jobs[2].schema_version)
    tracker.apply(jobs[2], SchemaState.NONE)
    again = tracker.table_at(50, jobs[2].schema_version)
    assert again == at


def test_a_snapshot_holds_everything_and_what_comes_next(upstream: Upstream) -> None:
    upstream.create(table(10, "a"))
    upstream.apply(ActionType.ADD_COLUMN, 2, 10, table=table(10, "a", "id", "v", "w"))
    upstream.create(table(11, "gone"))
    upstream.apply(ActionType.DROP_TABLE, 2, 11)
    raw = msgspec.json.encode(
        {
            "id": 77,
            "type": int(ActionType.MODIFY_COLUMN),
            "schema_id": 2,
            "table_id": 10,
            "state": 6,
            "binlog": {
                "SchemaVersion": 90,
                "TableInfo": msgspec.Raw(table_to_json(table(10, "a", "1 id", "9 v", "3 w"))),
            },
        }
    )
    upstream.tracker.load([job_from_json(raw)])
    copy = SchemaTracker.from_snapshot(upstream.tracker.snapshot())
    for version in (1, upstream.version, 90):
        assert copy.table_at(10, version) == upstream.tracker.table_at(10, version)
    ahead = copy.table_at(10, 90)
    assert ahead is not None
    assert ahead.aliases == {9: 2}
    assert copy.is_truncated(11)
    assert copy.version == upstream.tracker.version
    assert copy.snapshot() == upstream.tracker.snapshot()


def test_a_snapshot_that_is_none_is_refused() -> None:
    with pytest.raises(Corrupt, match="snapshot"):
        SchemaTracker.from_snapshot(b"{}")


def test_ids_of_background_tables_are_reserved() -> None:
    assert is_reserved((1 << 48) - 4)
    assert not is_reserved(1 << 40)
