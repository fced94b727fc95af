"""The options of the data source `binlogd`, checked before anything is read.

| option | what it says |
|---|---|
| `path`, or `load(...)` | a data directory, an archive (path or URL), or `binlogd://host:port` |
| `table` | `shop.orders`: typed rows of one table |
| `tables` | of `raw` and changes: which tables, by names with `*` and `?`, separated by commas |
| `except` | of the same: which not, in the same way |
| `form` | without `table`: `raw` (rows as JSON; the default), `changes`, `changelog` or `binlog` \
(bytes) |
| `from`, `to` | commit_ts in (from, to]: a TSO or an ISO 8601 time; all that is there |
| `net` | `true`: of each key the last change only (`table` alone) |
| `columns` | which columns of the table, separated by commas |
| `schemaHistory` | file with TiDB's /ddl/history, where the input has none |
| `schemaChange` | `error` (default) or `ignore`: a column appears that the read does not have \
(`table` alone) |
| `renames` | `error` (default) or `follow`: the name goes to another table (`table` alone) |
| `types` | as `binlogd export --type`, by commas: `tinyint1=boolean,invalid-text=replace` |
| `partitions` | of a read over gRPC that has a `from`, and of `net`; 1 |
| `partitionTransactions` | of other reads: about so many for each; 20000 |
| `maxTransactionsPerTrigger` | of a micro-batch; unlimited |
| `sslCa`, `sslCert`, `sslKey` | for a binlogd with TLS |
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, get_args

from binlogd.errors import ConfigError
from binlogd.settings.quantities import last_ts
from binlogd.snapshot.spec import TypeOptions, type_options
from binlogd.tidb.model import Job, jobs_from_json
from binlogd.tso import NO_TS, Tso

Form = Literal["rows", "raw", "binlog", "changes", "changelog", "change-steps", "changelog-steps"]
"""The last two are the two before them as a pipeline reads them."""
HIDDEN_DATABASES = ("mysql", "information_schema", "performance_schema", "sys", "metrics_schema")

_KNOWN = (
    *("path", "table", "tables", "except", "form", "from", "to", "net", "columns"),
    *("schemaHistory", "schemaChange", "renames", "types", "partitions", "partitionTransactions"),
    *("maxTransactionsPerTrigger", "sslCa", "sslCert", "sslKey"),
)
_NAMES = {name.lower(): name for name in _KNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What somebody wants to read. `after` NO_TS is the beginning, `upto` NO_TS what is resolved;
    `limit` 0 is no limit."""

    path: str
    form: Form
    database: str = ""
    table: str = ""
    tables: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    after: Tso = NO_TS
    upto: Tso = NO_TS
    is_net: bool = False
    columns: tuple[str, ...] = ()
    schema_history: str = ""
    ignores_new_columns: bool = False
    follows_renames: bool = False
    types: TypeOptions = field(default_factory=TypeOptions)
    partitions: int = 1
    partition_transactions: int = 20_000
    limit: int = 0
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""

    @property
    def keeps_all(self) -> bool:
        """Whether each change is kept, and not the last one of each key alone."""
        return self.form.startswith("changelog")

    def wants(self, database: str, table: str) -> bool:
        """Whether rows of a table are part of it. Names are folded as MySQL's are."""
        low = f"{database}.{table}".lower()
        if self.form == "rows":
            return low == f"{self.database}.{self.table}".lower()
        if any(fnmatchcase(low, pattern.lower()) for pattern in self.excluded):
            return False
        if self.tables:
            return any(fnmatchcase(low, pattern.lower()) for pattern in self.tables)
        return database.lower() not in HIDDEN_DATABASES


def _types(text: str) -> TypeOptions:
    """Raises ConfigError, also for types that only files of an export have."""
    types = type_options(_names(text))
    if types.json == "variant" or types.time in ("interval", "time"):
        raise ConfigError(
            "option types: json=variant, time=interval and time=time are for `binlogd export` only;"
            " here Spark itself casts, with parse_json or make_dt_interval"
        )
    return types


def request(options: Mapping[str, str]) -> ReadRequest:
    """Raises ConfigError that names the option."""
    given = _given(options)
    table = given.get("table", "")
    form = given.get("form", "rows" if table else "raw")
    if form not in get_args(Form):
        raise ConfigError(f'option form: "{form}" is none of {", ".join(get_args(Form))}')
    database, dot, name = table.partition(".")
    if (form == "rows") != bool(table) or bool(table) != bool(dot and name):
        raise ConfigError(
            "option table: name one table as database.table for typed rows; without it, form is"
            " raw, changes, changelog or binlog, and `tables` chooses among them"
        )
    if not given.get("path"):
        raise ConfigError(
            "option path: name a data directory, an archive or binlogd://host:port, by load(...)"
        )
    _check_meant(given, form)
    return ReadRequest(
        path=given["path"],
        form=form,  # type: ignore[arg-type]  # one of these, see above
        database=database,
        table=name,
        tables=_names(given.get("tables", "")),
        excluded=_names(given.get("except", "")),
        after=_moment(given, "from"),
        upto=_moment(given, "to"),
        is_net=_flag(given, "net", "true", "false"),
        columns=_names(given.get("columns", "")),
        schema_history=given.get("schemaHistory", ""),
        ignores_new_columns=_flag(given, "schemaChange", "ignore", "error"),
        follows_renames=_flag(given, "renames", "follow", "error"),
        types=_types(given.get("types", "")),
        partitions=_number(given, "partitions", 1),
        partition_transactions=_number(given, "partitionTransactions", 20_000),
        limit=_number(given, "maxTransactionsPerTrigger", 0),
        ssl_ca=given.get("sslCa", ""),
        ssl_cert=given.get("sslCert", ""),
        ssl_key=given.get("sslKey", ""),
    )


_OF_ONE: Sequence[str] = ("net", "columns", "schemaChange", "renames")
_OF_SEVERAL: Sequence[str] = ("tables", "except")


def _check_meant(given: Mapping[str, str], form: str) -> None:
    """Raises ConfigError for an option that would be passed over."""
    odd, why = _OF_ONE, "goes with `table` only"
    if form == "rows":
        odd, why = _OF_SEVERAL, "`table` names the one that is read"
    elif form == "binlog" and not any(map(given.get, odd)):
        odd, why = _OF_SEVERAL, "a binlog has the rows of all; raw and changes choose"
    for name in filter(given.get, odd):
        raise ConfigError(f"option {name}: {why}")
    if (given.get("sslCert") or given.get("sslKey")) and not given.get("sslCa"):
        raise ConfigError("option sslCa: is missing; without it there is no TLS")


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """Spark may hand over option names in lower case."""
    given = {}
    for key, value in options.items():
        name = _NAMES.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), _NAMES, n=1)
            hint = f"did you mean {_NAMES[near[0]]}?" if near else f"known: {', '.join(_KNOWN)}"
            raise ConfigError(f"option {key}: the data source binlogd does not know it; {hint}")
        given[name] = value.strip()
    return given


def _moment(given: Mapping[str, str], name: str) -> Tso:
    text = given.get(name, "")
    everything = ("", "0", "latest") if name == "to" else ("", "0")
    return NO_TS if text in everything else last_ts(text, f"option {name}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _flag(given: Mapping[str, str], name: str, yes: str, no: str) -> bool:
    text = given.get(name, no).lower()
    if text not in (yes, no):
        raise ConfigError(f'option {name}: "{text}" is neither {yes} nor {no}')
    return text == yes


_DIGITS_MAX = 9


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not is_number or (int(text) == 0 and default > 0):
        raise ConfigError(f'option {name}: "{text}" is no number above 0, of {_DIGITS_MAX} digits')
    return int(text)


def given_jobs(wanted: ReadRequest) -> list[Job] | None:
    """The DDL history of the option schemaHistory, a file with TiDB's answer at /ddl/history; None
    without the option. Raises ConfigError, Corrupt."""
    if not wanted.schema_history:
        return None
    try:
        return jobs_from_json(Path(wanted.schema_history).read_bytes())
    except OSError as error:
        raise ConfigError(f"option schemaHistory: {error}") from error
