"""What this process keeps from others: rows from other users of the machine, secrets from children.

Children read their orders from a pipe and need no secret of ours, and what stands in an environment
can be read in `/proc`, in crash reports and in Spark's own page for as long as the child lives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

OTHERS_MAY_NOT = 0o027
"""Taken away from the rights of every file and directory that is made: all of other users', and
the writing of the group's."""
_OURS = "BINLOGD_"
_SECRETS = frozenset({"MYSQL_PSWD", "BINLOG_SECRET_KEY"})


def keep_files_from_others() -> None:
    """For the whole process. One that was begun with less stays with less."""
    before = os.umask(0o777)
    os.umask(before | OTHERS_MAY_NOT)


def environment_of_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the configuration that came by variables, passwords and tokens among it."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OURS) and name not in _SECRETS
    }
