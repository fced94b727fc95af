"""What can go wrong between a session and its server, drawn at random or ordered one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from tests.sim.mysqld.lexing import Statement


class Fault(Enum):
    """What becomes of one statement, and of the answer to it."""

    CUT_BEFORE = "the connection is lost, the statement has not arrived"
    CUT_DONE = "it is done, the connection is lost before the answer"
    CUT_LATER = "the connection is lost, and the server does it a while after"
    CUT_AFTER = "it is done and answered, then the connection is lost"
    DEADLOCK = "error 1213: all of the transaction is undone"
    LOCK_TIMEOUT = "error 1205: the statement is undone"
    READ_ONLY = "error 1290"
    SLOW = "it takes long"


@dataclass
class Faults:
    """Rates are per statement, from 0 to 1. `orders` come first: of a statement that begins with
    these words the next one meets this fault, and the order is fulfilled.

    Times are in seconds: `latency_s` is the least and most of a round trip, `slow_s` of a slow one,
    `linger_s` until a server notices that a connection is gone; until then it holds its locks.
    """

    commits: Mapping[Fault, float] = field(default_factory=dict)
    """Of COMMIT, of DDL, and of writes that commit by themselves."""
    writes: Mapping[Fault, float] = field(default_factory=dict)
    """Of rows, and of SELECT ... FOR UPDATE, in a transaction."""
    others: Mapping[Fault, float] = field(default_factory=dict)
    refused: float = 0.0
    """Connections: too many (1040)."""
    latency_s: tuple[float, float] = (0.0, 0.0)
    ddl_s: tuple[float, float] = (0.0, 0.0)
    slow_s: tuple[float, float] = (1.0, 400.0)
    linger_s: tuple[float, float] = (0.0, 0.0)
    orders: list[tuple[bytes, Fault]] = field(default_factory=list)

    def quiet(self) -> None:
        """No fault from here on; times stay."""
        self.commits, self.writes, self.others, self.refused = {}, {}, {}, 0.0
        self.orders.clear()

    def of(self, statement: Statement, rng: Random, *, autocommit: bool) -> Fault | None:
        """What happens to a statement."""
        for number, (words, fault) in enumerate(self.orders):
            if statement.shape.startswith(words):
                del self.orders[number]
                return fault
        rates = self._rates(statement, autocommit=autocommit)
        if not rates:
            return None
        drawn = rng.random()
        for fault, rate in rates.items():
            drawn -= rate
            if drawn < 0:
                return fault
        return None

    def _rates(self, statement: Statement, *, autocommit: bool) -> Mapping[Fault, float]:
        word = statement.shape.split(b" ", 1)[0].upper()
        if word in _COMMITS:
            return self.commits
        if word in _WRITES:
            return self.commits if autocommit else self.writes
        if statement.shape.endswith(b"FOR UPDATE"):
            return self.writes
        return self.others


_COMMITS = frozenset({b"COMMIT", b"CREATE", b"DROP", b"ALTER", b"RENAME", b"TRUNCATE"})
_WRITES = frozenset({b"INSERT", b"REPLACE", b"UPDATE", b"DELETE"})
