"""One configuration out of a file, variables, secrets and words; nothing secret is shown."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlogd.errors import ConfigError
from binlogd.settings import passwords, sources
from binlogd.settings.config import Config
from binlogd.settings.effects import flattened
from binlogd.settings.sources import PATHS, Settings

TOKEN = "0123456789abcdef-token"


def read(
    text: str, tmp_path: Path, environ: Mapping[str, str] | None = None, **words: str
) -> Settings:
    path = tmp_path / "binlogd.toml"
    path.write_text(text)
    return sources.read(path, environ or {}, words)


def test_every_key_has_a_variable_and_each_variable_one_key() -> None:
    names = [sources.variable_of(key) for key, _ in flattened(Config())]
    assert len(names) == len(set(names))
    assert "BINLOGD_SYNCER__TO__PASSWORD" in names
    assert "BINLOGD_SYNCER__TO__CHECKPOINT__SECURITY__SSL_CA" in names


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("BINLOGD_DATA_DIR", "/d", "data-dir", "/d"),
        ("BINLOGD_PUMP__SHARDS", "2", "pump.shards", 2),
        ("BINLOGD_PUMP__GC", "8h", "pump.gc", "8h"),
        ("BINLOGD_PUMP__FAST_LANE", "false", "pump.fast-lane", False),
        ("BINLOGD_PUMP__HEARTBEAT_INTERVAL", "0.5", "pump.heartbeat-interval", 0.5),
        ("BINLOGD_SYNCER__SQL_MODE", "ANSI", "syncer.sql-mode", "ANSI"),
        ("BINLOGD_SYNCER__DB_TYPE", "mysql", "syncer.db-type", "mysql"),
        ("BINLOGD_SYNCER__TO__SYNC_MODE", "2", "syncer.to.sync-mode", 2),
        ("BINLOGD_SYNCER__REPLICATE_DO_DB", "a, ~^b", "syncer.replicate-do-db", ("a", "~^b")),
        ("BINLOGD_SYNCER__IGNORE_TXN_COMMIT_TS", "1,2", "syncer.ignore-txn-commit-ts", (1, 2)),
        ("BINLOGD_SYNCER__TO__PARAMS", '{a = "1"}', "syncer.to.params", {"a": "1"}),
    ],
)
def test_a_variable_wins_over_the_file_and_is_named_as_its_origin(
    tmp_path: Path, name: str, text: str, key: str, value: object
) -> None:
    found = read('data-dir = "/x"\n[pump]\nshards = 7', tmp_path, {name: text, "PATH": "/bin"})
    assert dict(flattened(found.config))[key] == value
    assert found.origins[key] == name
    other = "pump.shards" if key != "pump.shards" else "data-dir"
    assert found.origins[other] == str(tmp_path / "binlogd.toml")


def test_a_table_of_tables_is_given_as_toml_has_it(tmp_path: Path) -> None:
    variable = {"BINLOGD_SYNCER__IGNORE_TABLE": '[{db-name = "a", tbl-name = "b"}]'}
    assert read("", tmp_path, variable).config.syncer.ignore_table[0].tbl_name == "b"


def test_what_is_wrong_in_a_variable_is_at_no_line_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MEMORY_BUDGET: pump\.memory-budget: must be a number"):
        read("[pump]\nshards = 4\n", tmp_path, {"BINLOGD_PUMP__MEMORY_BUDGET": "9 EiB"})
    with pytest.raises(ConfigError, match=r"line 2: syncer\.to\.port: must be"):
        read("[syncer]\nto = {port = 1.5}\n", tmp_path)


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    environ = {"BINLOGD_ADDR": "127.0.0.1:2"}
    found = read('addr = "127.0.0.1:1"', tmp_path, environ, addr="127.0.0.1:3")
    assert found.config.addr == "127.0.0.1:3"
    assert found.origins["addr"] == "command line"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"BINLOGD_PUMP__SHARD": "1"}, "BINLOGD_PUMP__SHARD: .* did you mean BINLOGD_PUMP__SHARDS"),
        ({"BINLOGD_PUMP_SHARDS": "1"}, "did you mean BINLOGD_PUMP__SHARDS"),
        ({"BINLOGD_X": "1"}, "has every key"),
        ({"BINLOGD_PUMP__SHARDS": "many"}, "BINLOGD_PUMP__SHARDS: must be a whole number"),
        ({"BINLOGD_PUMP__SHARDS": "0"}, "BINLOGD_PUMP__SHARDS: pump.shards: must be above 0"),
        ({"BINLOGD_SYNCER__TO__PARAMS": "{"}, "a list or table as TOML has it"),
        ({"BINLOGD_SYNCER__TO__PARAMS": "{}\nx = 1"}, "a list or table as TOML has it"),
        ({"BINLOGD_SYNCER__REPLICATE_DO_DB": "[" * 2000}, "a list or table as TOML has it"),
        ({"BINLOGD_ADDR": "a:1", "BINLOGD_ADDR_FILE": "x"}, "both say addr; unset one"),
        ({"BINLOGD_ADDR_FILE": "/nowhere"}, "BINLOGD_ADDR_FILE: /nowhere cannot be read"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read("", tmp_path, environ)


def test_what_kubernetes_says_of_a_service_of_our_name_is_passed_over(tmp_path: Path) -> None:
    environ = {
        "BINLOGD_SERVICE_HOST": "10.0.0.1",
        "BINLOGD_SERVICE_PORT_GRPC": "8250",
        "BINLOGD_PORT": "tcp://10.0.0.1:8250",
        "BINLOGD_PORT_8250_TCP": "tcp://10.0.0.1:8250",
        "BINLOGD_PORT_8250_TCP_ADDR": "10.0.0.1",
        "BINLOGD_PUMP_SERVICE_HOST": "10.0.0.2",
    }
    assert read("", tmp_path, environ).config == Config()


def test_what_kubernetes_says_of_a_service_named_mysql_is_no_port(tmp_path: Path) -> None:
    environ = {"MYSQL_PORT": "tcp://10.0.0.1:3306", "MYSQL_SERVICE_HOST": "10.0.0.1"}
    assert read("", tmp_path, environ).config == Config()
    to = read("", tmp_path, {**environ, "MYSQL_HOST": "mysql"}).config.syncer.to
    assert (to.host, to.port) == ("mysql", 3306)


def test_what_is_wrong_in_the_file_is_not_blamed_on_a_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"binlogd.toml: pump.shards: must be above 0"):
        read("[pump]\nshards = 0", tmp_path, {"BINLOGD_PUMP__SHARDS": "2"})


# --- secrets -------------------------------------------------------------------------------


def test_secrets_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("p w\n")
    (tmp_path / "token").write_text(TOKEN + "\r\n")
    text = (
        '[security]\nadmin-token-file = "token"\n[syncer.to]\npassword-file = "pw"\n'
        'schema-registry-password-file = "pw"\n[syncer.to.checkpoint]\npassword_file = "pw"'
    )
    found = read(text, tmp_path)
    assert found.config.security.admin_token == TOKEN
    assert found.config.syncer.to.password == "p w"
    assert found.config.syncer.to.checkpoint.password == "p w"
    assert found.config.syncer.to.schema_registry_password == "p w"
    assert found.origins["syncer.to.password"] == str(tmp_path / "pw")


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "pw").write_text("secret")
    for name in ("BINLOGD_ADMIN_TOKEN_FILE", "BINLOGD_SECURITY__ADMIN_TOKEN_FILE"):
        found = read("", tmp_path, {name: str(tmp_path / "token")})
        assert found.config.security.admin_token == TOKEN
    environ = {"BINLOGD_SYNCER__TO__PASSWORD_FILE": str(tmp_path / "pw")}
    found = read('[syncer.to]\npassword = "in the file"', tmp_path, environ)
    assert found.config.syncer.to.password == "secret"


def test_a_password_of_binlogctl_is_decrypted(tmp_path: Path) -> None:
    hidden = passwords.encrypt("Pässwort", "", lambda n: b"i" * n)
    found = read(f'[syncer.to]\npassword = "x"\nencrypted_password = "{hidden}"', tmp_path)
    assert found.config.syncer.to.password == "Pässwort"


def test_what_the_original_encrypted_is_read() -> None:
    """AES-CFB with segments of 128 bits, as Go's: the key stream of NIST SP 800-38A, F.3.13."""
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = bytes.fromhex("3b3fd92eb72dad20333449f8e83cfb4a")
    text = b"sixteen letters!"
    hidden = bytes(a ^ b ^ c for a, b, c in zip(plain, cipher, text, strict=True))
    encrypted = base64.b64encode(bytes(range(16)) + b"@" + hidden).decode()
    assert passwords.decrypt(encrypted, "2b7e151628aed2a6abf7158809cf4f3c") == text.decode()


@pytest.mark.parametrize("length", [16, 24, 32])
@given(text=st.text(max_size=70), iv=st.binary(min_size=16, max_size=16))
def test_encrypting_and_decrypting_is_nothing(length: int, text: str, iv: bytes) -> None:
    key = (bytes(range(length))).hex()
    assert passwords.decrypt(passwords.encrypt(text, key, lambda _: iv), key) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('encrypted_password = "%"', "failed to decrypt password in `to.encrypted_password`"),
        ('encrypted_password = "é"', "is not base64; make it by `binlogd ctl encrypt`"),
        ('encrypted_password = "aGVsbG8="', "ciphertext not valid"),
        ('password = "a"\npassword-file = "b"', "give one of them"),
        ('password-file = "missing"', "missing cannot be read"),
        ('pasword = "hunter2"', "did you mean syncer.to.password?"),
    ],
)
def test_a_secret_that_cannot_be_had_is_refused_without_showing_it(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(f"[syncer.to]\n{text}", tmp_path)
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    hidden = passwords.encrypt("secret", "", lambda n: b"i" * n)
    with pytest.raises(ConfigError, match="BINLOG_SECRET_KEY: expected 16, 24 or 32 bytes"):
        read(f'[syncer.to]\nencrypted_password = "{hidden}"', tmp_path, {"BINLOG_SECRET_KEY": "ab"})


@pytest.mark.parametrize("token", ["short", "with a space in it", "ünïcödé-tökén-1234"])
def test_a_token_that_guards_nothing_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(ConfigError, match="at least 16") as refused:
        read(f'[security]\nadmin-token = "{token}"', tmp_path)
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('ssl-cert = "a"', "ssl-cert and ssl-key go together"),
        ('ssl-cert = "a"\nssl-key = "b"', "security.ssl-ca: is missing"),
        ('cert-allowed-cn = ["a"]', "security.ssl-ca: is missing"),
        ('ssl-ca = "a"', "the port speaks TLS, and needs a certificate"),
    ],
)
def test_half_a_tls_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(f"[security]\n{text}", tmp_path)


def test_no_representation_holds_a_secret(tmp_path: Path) -> None:
    text = (
        f'[security]\nadmin-token = "{TOKEN}"\n[syncer.to]\npassword = "hunter2"\n'
        '[syncer.to.checkpoint]\npassword = "hunter3"'
    )
    found = read(text, tmp_path)
    shown = {key: sources.shown(key, value) for key, value in flattened(found.config)}
    for said in (repr(found), str(found.config), repr(found.config.syncer.to), repr(shown)):
        assert "hunter" not in said
        assert TOKEN not in said
    assert shown["syncer.to.password"] == "***"
    assert shown["syncer.to.encrypted-password"] == ""


def test_the_variables_of_a_drainer_count_where_nothing_else_says_it(tmp_path: Path) -> None:
    environ = {"MYSQL_HOST": "db", "MYSQL_PORT": "4000", "MYSQL_USER": "sync", "MYSQL_PSWD": "word"}
    found = read("", tmp_path, environ)
    to = found.config.syncer.to
    assert (to.host, to.port, to.user, to.password) == ("db", 4000, "sync", "word")
    assert found.origins["syncer.to.port"] == "MYSQL_PORT"
    (tmp_path / "secret").write_text("of a file\n")
    text = '[syncer.to]\nhost = "here"\npassword-file = "secret"\n'
    to = read(text, tmp_path, {**environ, "BINLOGD_SYNCER__TO__USER": "me"}).config.syncer.to
    assert (to.host, to.port, to.user, to.password) == ("here", 4000, "me", "of a file")
    with pytest.raises(ConfigError, match="MYSQL_PORT"):
        read("", tmp_path, {"MYSQL_PORT": "many"})


ONE_RULE = """
data-dir = "data"
binlog-socket = "unix://p.sock"
[security]
ssl-ca = "ca.pem"
ssl-cert = "cert.pem"
ssl-key = "key.pem"
[upstream]
schema-history = "history.json"
[syncer]
db-type = "mysql"
relay.log-dir = "relay"
to.dir = "files"
to.password-file = "secret"
[archive]
url = "archive"
base = "bases"
[export]
dir = "exports"
"""


def places(found: Config) -> set[str]:
    return {str(value) for key, value in flattened(found) if key in PATHS and value}


def test_every_relative_path_of_a_file_counts_from_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("x")
    monkeypatch.chdir("/")
    names = [
        "data",
        "p.sock",
        "ca.pem",
        "cert.pem",
        "key.pem",
        "history.json",
        "relay",
        "files",
        "secret",
        "archive",
        "bases",
    ]
    found = read(ONE_RULE, tmp_path, {"BINLOGD_EXPORT__DIR": "of-a-variable"})
    assert places(found.config) == {f"{tmp_path}/{name}" for name in [*names, "of-a-variable"]}
    monkeypatch.chdir(tmp_path)  # what others are told of a place means something to them, too
    here = places(read(ONE_RULE, tmp_path).config) - {"data"}
    assert all(Path(place).is_absolute() for place in here)
    url = read('upstream.schema-history = "http://tidb:10080/ddl/history"', tmp_path)
    assert url.config.upstream.schema_history.startswith("http://")
    typed = read("", tmp_path, None, **{"data-dir": "data"})
    assert typed.config.data_dir == "data"  # from the working directory, as everywhere in a shell


def test_a_place_that_cannot_be_looked_at_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    long = "x" * 300  # as unreadable for root, too, as somebody else's directory for a user
    text = f'data-dir = "{long}"\n[syncer]\ndb-type = "mysql"\nrelay.log-dir = "{long}"'
    assert read(text, tmp_path).config.data_dir == str(tmp_path / long)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert read('data-dir = "/d"', tmp_path).config.data_dir == "/d"


def test_a_link_to_a_configuration_moves_no_data(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "real.toml").write_text('data-dir = "data"')
    (tmp_path / "binlogd.toml").symlink_to("v2/real.toml")
    found = sources.read(tmp_path / "binlogd.toml", {})
    assert found.config.data_dir == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ('data-dir = "data"', "cwd/data/pump/shards"),
        ('[upstream]\nschema-history = "h.json"', "cwd/h.json"),
        ('data-dir = "d"\n[syncer]\ndb-type="mysql"\nrelay.log-dir = "relay"', "conf/d/relay/1"),
        ('data-dir = "d"\n[syncer.to]\ndir = "files"', "conf/d/files/savepoint"),
    ],
)
def test_data_where_a_path_counted_from_before_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, before: str
) -> None:
    for name in ("conf", "cwd"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    read(text, tmp_path / "conf")  # a new installation is asked nothing
    left = tmp_path / before
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("x")
    with pytest.raises(ConfigError, match="move what is there") as error:
        read(text, tmp_path / "conf")
    (kept,) = re.findall(r'write (\S+ = "(.+?)")', str(error.value))
    key, place = kept[0].split(" = ")[0], Path(kept[1])
    assert left.is_relative_to(place)
    read(re.sub(rf"({key.rpartition('.')[2]} = ).*", rf'\1"{place}"', text), tmp_path / "conf")
