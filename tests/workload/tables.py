"""The tables of the standard workload: every kind of key, and every column type."""

from __future__ import annotations

from binlogd.tidb.kinds import Tp
from tests.workload.schema import (
    ColumnDef,
    TableDef,
    binary,
    bits,
    blob,
    char,
    date,
    decimal,
    enum,
    integer,
    json,
    real,
    set_of,
    temporal,
    text,
    varbinary,
    varchar,
    year,
)

DATABASES = ("bank", "shop", "types")

_ID = ColumnDef("id", integer(), not_null=True)
_BIG_ID = ColumnDef("id", integer("BIGINT"), not_null=True)

BANK = (
    TableDef(
        "bank",
        "accounts",
        (
            _ID,
            ColumnDef("owner", varchar(30), not_null=True),
            ColumnDef("balance", decimal(16, 2), not_null=True),
            ColumnDef("version", integer(), not_null=True, default="0"),
            ColumnDef("touched", temporal(Tp.TIMESTAMP, 3)),
        ),
        primary=("id",),
        keys=(("owner",),),
    ),
    TableDef(
        "bank",
        "transfers",
        (
            ColumnDef("id", integer("BIGINT"), not_null=True, auto_increment=True),
            ColumnDef("src", integer()),
            ColumnDef("dst", integer()),
            ColumnDef("amount", decimal(16, 2)),
            ColumnDef("memo", varchar(100)),
            ColumnDef("at", temporal(Tp.DATETIME, 6)),
        ),
        primary=("id",),
    ),
    TableDef(
        "bank",
        "cards",
        (
            ColumnDef("number", varchar(19), not_null=True),
            ColumnDef("account", integer()),
            ColumnDef("kind", enum("debit", "credit", "none")),
            ColumnDef("flags", set_of("blocked", "gold", "web")),
        ),
        primary=("number",),
        unique=(("account",),),
    ),
    TableDef(
        "bank",
        "audit",
        (
            ColumnDef("account", integer()),
            ColumnDef("what", varchar(40)),
            ColumnDef("amount", real("DOUBLE")),
            ColumnDef("at", temporal(Tp.DATETIME)),
        ),
    ),
    TableDef(
        "bank",
        "limits",
        (
            ColumnDef("account", integer(unsigned=True), not_null=True),
            ColumnDef("period", varchar(10), not_null=True),
            ColumnDef("amount", decimal(10, 2)),
            ColumnDef("used", real("FLOAT")),
        ),
        primary=("account", "period"),
        clustered=False,
    ),
)

SHOP = (
    TableDef(
        "shop",
        "items",
        (
            ColumnDef("sku", char(12), not_null=True),
            ColumnDef("title", varchar(80)),
            ColumnDef("price", decimal(12, 4)),
            ColumnDef("stock", integer()),
            ColumnDef("picture", blob()),
            ColumnDef("attributes", json()),
        ),
        primary=("sku",),
    ),
    TableDef(
        "shop",
        "orders",
        (
            ColumnDef("id", integer("BIGINT", unsigned=True), not_null=True),
            ColumnDef("customer", varchar(60)),
            ColumnDef("status", enum("new", "paid", "sent", "done", "void"), default="new"),
            ColumnDef("total", decimal(14, 4)),
            ColumnDef("placed", temporal(Tp.DATETIME)),
        ),
        primary=("id",),
        unique=(("customer", "id"),),
    ),
    TableDef(
        "shop",
        "order_lines",
        (
            ColumnDef("order_id", integer("BIGINT", unsigned=True), not_null=True),
            ColumnDef("line", integer(), not_null=True),
            ColumnDef("sku", char(12)),
            ColumnDef("quantity", integer()),
            ColumnDef("price", decimal(12, 4)),
        ),
        primary=("order_id", "line"),
    ),
    TableDef(
        "shop",
        "customers",
        (
            _BIG_ID,
            ColumnDef("email", varchar(60), not_null=True),
            ColumnDef("name", varchar(40)),
            ColumnDef("seat", integer("SMALLINT", unsigned=True)),
            ColumnDef("born", date()),
            ColumnDef("note", text()),
        ),
        primary=("id",),
        unique=(("email",), ("seat",)),
    ),
    TableDef(
        "shop",
        "days",
        (
            ColumnDef("day", date(), not_null=True),
            ColumnDef("code", varbinary(8), not_null=True),
            ColumnDef("sold", integer("BIGINT")),
        ),
        primary=("day", "code"),
    ),
)

TYPES = (
    TableDef(
        "types",
        "numbers",
        (
            _BIG_ID,
            *(
                ColumnDef(f"{sign}_{name.lower()}", integer(name, unsigned=sign == "u"))
                for name in ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
                for sign in ("s", "u")
            ),
            ColumnDef("y", year()),
            ColumnDef("f", real("FLOAT")),
            ColumnDef("d", real("DOUBLE")),
            ColumnDef("d6530", decimal(65, 30)),
            ColumnDef("d65", decimal(65, 0)),
            ColumnDef("d11", decimal(1, 1)),
            ColumnDef("d189", decimal(18, 9)),
            ColumnDef("b1", bits(1)),
            ColumnDef("b12", bits(12)),
            ColumnDef("b64", bits(64)),
        ),
        primary=("id",),
    ),
    TableDef(
        "types",
        "strings",
        (
            _BIG_ID,
            ColumnDef("c", char(10)),
            ColumnDef("v", varchar(200)),
            ColumnDef("tt", text("TINY")),
            ColumnDef("t", text()),
            ColumnDef("mt", text("MEDIUM")),
            ColumnDef("lt", text("LONG")),
            ColumnDef("b", binary(10)),
            ColumnDef("vb", varbinary(20)),
            ColumnDef("tb", blob("TINY")),
            ColumnDef("bl", blob()),
            ColumnDef("mb", blob("MEDIUM")),
            ColumnDef("lb", blob("LONG")),
            ColumnDef("e", enum("a", "it's", "ünï", "x,y")),
            ColumnDef("st", set_of("a", "b", "c", "d")),
            ColumnDef("j", json()),
        ),
        primary=("id",),
    ),
    TableDef(
        "types",
        "times",
        (
            _BIG_ID,
            ColumnDef("d", date()),
            *(ColumnDef(f"dt{fsp}", temporal(Tp.DATETIME, fsp)) for fsp in (0, 3, 6)),
            *(ColumnDef(f"ts{fsp}", temporal(Tp.TIMESTAMP, fsp)) for fsp in (0, 1, 6)),
            *(ColumnDef(f"t{fsp}", temporal(Tp.DURATION, fsp)) for fsp in (0, 2, 6)),
        ),
        primary=("id",),
    ),
)

STANDARD = (*BANK, *SHOP, *TYPES)

PARTITIONED = TableDef(
    "bank",
    "visits",
    (
        _BIG_ID,
        ColumnDef("account", integer()),
        ColumnDef("page", varchar(40)),
        ColumnDef("at", temporal(Tp.DATETIME, 3)),
    ),
    primary=("id",),
    bounds=(-7, 6, 15, 30),
)
"""Not of the standard workload, of which whoever compares has a copy."""
