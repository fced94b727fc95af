"""What TiDB keeps of its schema in TiKV, written there for tests."""

from __future__ import annotations

import json

from binlogd.tidb import meta_keys
from binlogd.tidb.model import database_from_json, database_to_json, table_to_json
from binlogd.tidb.schema import SchemaTracker
from binlogd.tso import Tso
from tests.support.tikv import FakeTikv


def keep_schema(cluster: FakeTikv, tracker: SchemaTracker, raw: bytes) -> Tso:
    """Writes what TiDB has in its schema; the timestamp from which on it is so."""
    snapshot = json.loads(raw)
    start_ts, commit_ts = cluster.tso.pass_s(1), cluster.tso.pass_s(1)
    values: dict[bytes, bytes | None] = {
        meta_keys.string_key(meta_keys.SCHEMA_VERSION): b"%d" % tracker.version
    }
    for each in snapshot["databases"]:
        database = database_from_json(json.dumps(each).encode())
        name = meta_keys.database_name(database.id)
        values[meta_keys.hash_key(meta_keys.DATABASES, name)] = database_to_json(database)
        values[meta_keys.hash_key(name, b"TID:%d" % database.id)] = b"30001"
    schema_ids = {each["id"]: each["schema_id"] for each in snapshot["tables"]}
    for _, table in tracker.tables():
        name = meta_keys.database_name(schema_ids[table.id])
        values[meta_keys.hash_key(name, b"Table:%d" % table.id)] = table_to_json(table)
    for key in cluster.records.writes:
        values.setdefault(key, None)
    cluster.records.prewrite(values, start_ts)
    cluster.records.commit(values, start_ts, commit_ts)
    return commit_ts
