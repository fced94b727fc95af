"""Errors by the numbers of MariaDB's list."""

from __future__ import annotations


class ServerError(Exception):
    """What the server answers instead of a result."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def no_database(name: str) -> ServerError:
    """It is not there."""
    return ServerError(1049, f"Unknown database '{name}'")


def no_table(database: str, table: str) -> ServerError:
    """It is not there."""
    return ServerError(1146, f"Table '{database}.{table}' doesn't exist")


def unknown_column(name: str, where: str) -> ServerError:
    """It is not there."""
    return ServerError(1054, f"Unknown column '{name}' in '{where}'")


READ_ONLY = ServerError(
    1290,
    "The MariaDB server is running with the --read-only option so it cannot execute this statement",
)
