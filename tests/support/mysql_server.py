"""A private MySQL beside the private MariaDB: the same, but for how it is made and started."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support import mysql_tree
from tests.support.mariadb import COMMON, MariaDb, as_user, become


class MySql(MariaDb):
    """See MariaDb; `options` are MySQL's."""

    name = "MySQL"

    def command(self, data: Path) -> list[str]:
        """What starts it."""
        syncs = () if self.is_durable else ("--innodb-flush-method=nosync",)
        return [*mysql_tree.mysqld(), *COMMON, *_OWN, *syncs, *_places(data), *as_user()]

    def template(self) -> Path:
        """A fresh data directory, to be copied."""
        version = subprocess.run(
            [*mysql_tree.mysqld(), "--no-defaults", "--version"],
            check=True,
            capture_output=True,
            text=True,
        )
        name = version.stdout.split("Ver", 1)[-1].split()[0]
        template = mysql_tree.cache() / f"mysql-data-{name}"
        if not template.exists():
            _install(template)
        return template


_OWN = (
    "--innodb-redo-log-capacity=256M",
    "--innodb-doublewrite=OFF",  # no test crashes the machine
    "--mysqlx=OFF",
    "--secure-file-priv=NULL",
)


def _places(data: Path) -> Sequence[str]:
    usr = mysql_tree.tree() / "usr"
    return (
        f"--basedir={usr}",
        f"--datadir={data}",
        f"--lc-messages-dir={usr / 'share' / 'mysql'}",
        f"--character-sets-dir={usr / 'share' / 'mysql' / 'charsets'}",
        f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
    )


def _install(template: Path) -> None:
    """Made beside its place and moved there at once: two test runs may do so at one time."""
    template.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fresh", dir=template.parent) as work:
        fresh, first = Path(work) / "data", Path(work) / "first.sql"
        first.write_text(  # under --skip-name-resolve nobody comes from localhost
            "CREATE USER root@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        command = [*mysql_tree.mysqld(), "--no-defaults", "--initialize-insecure"]
        command += [*_places(fresh), *as_user(), f"--init-file={first}", "--secure-file-priv=NULL"]
        command += ["--innodb-redo-log-capacity=8M", "--innodb-flush-method=nosync"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"MySQL makes no data directory: {done.stderr[-2000:]}")
        become(fresh, template)
