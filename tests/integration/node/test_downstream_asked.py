"""`binlogd check-config --ask` names what the downstream's user lacks, and is content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.appliance import into_mariadb, run
from tests.support.mariadb import MariaDb


@pytest.mark.parametrize("privilege", ["", "PROCESS"])
def test_a_user_without_process_is_named_before_a_start(
    privilege: str, each_server: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = [f"GRANT {privilege} ON *.* TO poor@'%'"] if privilege else []
    each_server.execute("DROP USER IF EXISTS poor@'%'", "CREATE USER poor@'%'", *granted)
    monkeypatch.setattr(each_server, "user", "poor")
    file = tmp_path / "binlogd.toml"
    file.write_text(f'data-dir = "{tmp_path / "data"}"\n' + into_mariadb(each_server))
    asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
    assert asked.returncode == 0, asked.stderr
    said = "the downstream's user poor lacks the PROCESS privilege"
    assert (said in asked.stdout) == (not privilege)


def test_a_downstream_that_does_not_answer_is_said(tmp_path: Path) -> None:
    file = tmp_path / "binlogd.toml"
    file.write_text(
        f'data-dir = "{tmp_path / "data"}"\n'
        '[syncer]\ndb-type = "mysql"\n[syncer.to]\nhost = "127.0.0.1"\nport = 1\nuser = "u"\n'
    )
    asked = run(tmp_path, "check-config", "-c", str(file), "--ask", "--json")
    assert asked.returncode == 0, asked.stderr
    warning = json.loads(asked.stdout)["downstream_warning"]
    assert warning.startswith("the downstream could not be asked:")
