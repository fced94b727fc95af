"""The numbers that TiDB and MySQL give to types, states and DDL actions.

Source: pingcap/tidb parser/model/{model,ddl}.go, parser/mysql/type.go.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 4
"""Bytes of `Mutation.sequence`: what happened to a row."""


class SchemaState(IntEnum):
    """How far a schema object is on its way in or out; only PUBLIC is visible to users."""

    NONE = 0
    DELETE_ONLY = 1
    WRITE_ONLY = 2
    WRITE_REORGANIZATION = 3
    DELETE_REORGANIZATION = 4
    PUBLIC = 5
    REPLICA_ONLY = 6
    GLOBAL_TXN_ONLY = 7


class JobState(IntEnum):
    """State of a DDL job; of those in the history only SYNCED (and DONE) took effect."""

    NONE = 0
    RUNNING = 1
    ROLLING_BACK = 2
    ROLLBACK_DONE = 3
    DONE = 4
    CANCELLED = 5
    SYNCED = 6
    CANCELLING = 7
    QUEUEING = 8
    PAUSED = 9
    PAUSING = 10


class PartitionKind(IntEnum):
    """How a table is partitioned."""

    NONE = 0
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4


class ActionType(IntEnum):
    """What a DDL job does. TiDB 3.0 uses 34 for MODIFY_AUTO_ID_CACHE: decide by content there."""

    NONE = 0
    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT_VALUE = 15
    SHARD_ROW_ID = 16
    MODIFY_TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_TABLE_PARTITION = 19
    DROP_TABLE_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET = 22
    TRUNCATE_TABLE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    UPDATE_TIFLASH_REPLICA_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    MODIFY_AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM = 40
    ALTER_INDEX_VISIBILITY = 41
    EXCHANGE_TABLE_PARTITION = 42
    ADD_CHECK_CONSTRAINT = 43
    DROP_CHECK_CONSTRAINT = 44
    ALTER_CHECK_CONSTRAINT = 45
    ALTER_TABLE_ALTER_PARTITION = 46
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    ALTER_TABLE_ATTRIBUTES = 49
    ALTER_PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT_POLICY = 51
    ALTER_PLACEMENT_POLICY = 52
    DROP_PLACEMENT_POLICY = 53
    ALTER_PARTITION_PLACEMENT = 54
    MODIFY_SCHEMA_PLACEMENT = 55
    ALTER_TABLE_PLACEMENT = 56
    ALTER_CACHE_TABLE = 57
    ALTER_TABLE_STATS_OPTIONS = 58
    ALTER_NO_CACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    ALTER_TTL_INFO = 65
    ALTER_TTL_REMOVE = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    ALTER_TABLE_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


TABLE_DROPS = frozenset({ActionType.DROP_TABLE, ActionType.DROP_VIEW, ActionType.DROP_SEQUENCE})
DROPS_COLUMNS = frozenset({ActionType.DROP_COLUMN, ActionType.DROP_COLUMNS})
RECOVERIES = frozenset({ActionType.RECOVER_TABLE, ActionType.RECOVER_SCHEMA})
"""They bring back rows that no binlog holds."""
OF_POLICIES_AND_GROUPS = frozenset(
    each for each in ActionType if each.name.endswith(("_PLACEMENT_POLICY", "_RESOURCE_GROUP"))
)
"""These live in no schema, and change nothing of tables."""
WITHOUT_EFFECT = OF_POLICIES_AND_GROUPS | {
    ActionType.LOCK_TABLE,
    ActionType.UNLOCK_TABLE,
    ActionType.FLASHBACK_CLUSTER,
}
"""Their schema_id counts policies and groups from 1, or nothing of a table changes."""


class Tp(IntEnum):
    """MySQL's type codes; a TEXT has the code of the BLOB of its size, only the charset differs."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    VECTOR = 225
    JSON = 245
    NEW_DECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


FLAG_NOT_NULL = 0x1
FLAG_PRIMARY_KEY = 0x2
FLAG_UNSIGNED = 0x20
FLAG_AUTO_INCREMENT = 0x200
FLAG_ON_UPDATE_NOW = 0x2000

STRING_TYPES = frozenset[int](
    {Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING, Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB}
)
"""Types whose values are bytes; text or not is told by the charset."""


class UnexpectedLayout(Exception):
    """A row that is not laid out as a reader was made for; the generic decoder reads it."""
