"""Whether a MySQL or MariaDB holds what the model of a workload says."""

from __future__ import annotations

from binlogd.tso import MAX_TS, Tso
from tests.support.mariadb import MariaDb
from tests.workload.generator import Workload
from tests.workload.mysql_check import MySqlReader, MySqlUrl, as_mysql_prints
from tests.workload.replica import differences

PREFIX = "w_"


async def model_differences(workload: Workload, server: MariaDb, at: Tso = MAX_TS) -> list[str]:
    """What differs as of a moment in the databases that begin with `w_`, a line each."""
    expected, tables = workload.model.contents(at), workload.model.tables(at)
    url = MySqlUrl("127.0.0.1", server.port, server.user, server.password)
    async with MySqlReader.connected(url) as reader:
        held = await reader.contents(tables, PREFIX)
    printed = {name: as_mysql_prints(each, tables[name]) for name, each in expected.items()}
    return list(differences(printed, held))
