"""`binlogd check-config --ask` says what the others answer, and leaves nothing behind."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.appliance import Appliance, into_mariadb, run
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


def test_a_question_makes_no_cluster_id_here_nor_at_the_node_that_stands_in_for_pd(
    tmp_path: Path,
) -> None:
    (tmp_path / "pd").mkdir()
    with closing(Appliance(tmp_path / "pd", history=b"[]")) as stands_in:
        stands_in.configure('[upstream]\nschema-history = "ddl_history.json"\n')
        stands_in.start()
        file = tmp_path / "binlogd.toml"
        file.write_text(
            f'data-dir = "{tmp_path / "data"}"\n[upstream]\nkind = "pd"\n'
            f'pd-urls = "http://127.0.0.1:{stands_in.port}"\n'
        )
        for _ in range(2):
            asked = run(tmp_path, "check-config", "-c", str(file), "--ask")
            assert asked.returncode == 0, asked.stderr
        assert stands_in.status()["cluster_id"] is None
    assert not (tmp_path / "data").exists()
