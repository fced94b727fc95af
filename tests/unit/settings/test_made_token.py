"""The token that a node makes for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from binlogd.commands.options import load_asking
from binlogd.commands.running import admin_token
from binlogd.errors import ConfigError
from binlogd.settings.made_token import TOKEN_FILE, made_token, token_of_node
from binlogd.settings.operators import check_token


def test_it_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    token = made_token(tmp_path)
    check_token(token, "made")
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert made_token(tmp_path) == token == token_of_node(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [TOKEN_FILE]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_one_that_others_could_read_is_made_anew(mode: int, tmp_path: Path) -> None:
    token = made_token(tmp_path)
    (tmp_path / TOKEN_FILE).chmod(mode)
    again = made_token(tmp_path)
    assert again != token
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", ["", "abc"])
def test_a_torn_one_is_made_anew(torn: str, tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text(torn)
    (tmp_path / TOKEN_FILE).chmod(0o600)
    assert len(made_token(tmp_path)) == 64


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere/admin-token: No such file or directory"):
        made_token(tmp_path / "nowhere")


def test_a_command_tells_it_to_its_own_node_and_not_to_another(tmp_path: Path) -> None:
    token = made_token(tmp_path)
    path = tmp_path / "c.toml"
    path.write_text(f'data-dir = "{tmp_path}"\naddr = "10.1.2.3:8250"\n')
    assert admin_token(load_asking(path, None)) == token
    assert admin_token(load_asking(path, "127.0.0.1:8250")) == token
    assert admin_token(load_asking(path, "10.9.9.9:8250")) == ""
    path.write_text(f'data-dir = "{tmp_path}"\nsecurity.admin-token = "0123456789abcdef"\n')
    assert admin_token(load_asking(path, "10.9.9.9:8250")) == "0123456789abcdef"
