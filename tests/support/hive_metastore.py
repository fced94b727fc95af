"""A real Hive Metastore with its names in Derby (`make setup-soak`)."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from pyiceberg.catalog.hive import HiveCatalog

from tests.support.ports import free_port
from tests.support.started import listens, started
from tests.support.tried import tried

JARS = Path(__file__).parents[2] / ".venv" / "hive"


@contextmanager
def hive_metastore(directory: Path) -> Iterator[str]:
    """The URI of one that answers until the end of the block; it keeps its files in `directory`."""
    shutil.copytree(_tables_of_locks(), directory / "hive")
    with _server(directory / "hive", makes_tables=False) as uri:
        jar = next(JARS.glob("hive-standalone-metastore-*.jar"))
        tried("Hive Metastore", jar.stem.rpartition("-")[2])
        yield uri


@cache
def _tables_of_locks() -> Path:
    """A Derby with tables for locks, without which nobody commits. The Metastore makes them only
    for tests of its own, and then serves no client that does not say it is one."""
    directory = Path(mkdtemp(prefix="binlogd-hive-"))
    atexit.register(shutil.rmtree, directory)
    with _server(directory, makes_tables=True) as uri:
        from hive_metastore.ttypes import ShowLocksRequest

        with HiveCatalog("names", uri=uri)._client as client:
            client.show_locks(ShowLocksRequest())
    return directory


@contextmanager
def _server(directory: Path, *, makes_tables: bool) -> Iterator[str]:
    assert JARS.is_dir(), f"no Hive Metastore in {JARS}: run `make setup-soak`"
    port, conf = free_port(), directory / "conf"
    conf.mkdir(exist_ok=True)
    told = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{directory / 'derby'};create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "metastore.schema.verification": "false",
        "metastore.warehouse.dir": (directory / "warehouse").as_uri(),
        "metastore.task.threads.always": f"{_HIVE}.events.EventCleanerTask",
        "metastore.expression.proxy": f"{_HIVE}.DefaultPartitionExpressionProxy",
        "metastore.disallow.incompatible.col.type.changes": "false",  # as Iceberg's users need it
        "hive.in.test": str(makes_tables).lower(),
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in told.items()
    )
    (conf / "metastore-site.xml").write_text(f"<configuration>\n{properties}</configuration>\n")
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{conf}:{JARS}/*"]
    words = [*java, f"{_HIVE}.HiveMetaStore", "-p", str(port)]
    with started(words, lambda: listens(port), directory=directory, log=directory / "log"):
        yield f"thrift://127.0.0.1:{port}"


_HIVE = "org.apache.hadoop.hive.metastore"
