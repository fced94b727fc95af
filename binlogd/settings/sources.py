"""One configuration out of a file, the environment, files of secrets and the command line.

The later wins. A variable is named by the way to its key: `syncer.to.password` is
BINLOGD_SYNCER__TO__PASSWORD, and with `_FILE` behind it, it names a file that holds the value.
Where each value came from is kept, so that `binlogd check-config` can say it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from binlogd.errors import ConfigError
from binlogd.host.words import is_utf8
from binlogd.settings import config, passwords
from binlogd.settings.config import Config
from binlogd.settings.effects import flattened
from binlogd.settings.mistakes import SECRETS, right_form
from binlogd.settings.operators import check_token
from binlogd.settings.quantities import Seconds, Size, kinds_of

_DATA_DIR, _HISTORY = "data-dir", "upstream.schema-history"
_ONCE_BELOW_DATA_DIR = ("syncer.relay.log-dir", "syncer.to.dir", "binlog-socket")
_NAMES = (_DATA_DIR, "schema-history", "log-dir", "dir", "binlog-socket", "url", "base")
_FILES = ("ssl-ca", "ssl-cert", "ssl-key", "ssl-key-password-file", "admin-token-file")
_SECRETS = ("password-file", "kafka-token-file", "schema-registry-password-file")
_KEYS = [key for key, _ in flattened(Config())]
PATHS = [key for key in _KEYS if key.rpartition(".")[2] in (*_NAMES, *_FILES, *_SECRETS)]
"""Every key that names a place on this machine, or may."""
_UNIX = "unix://"
_DATA_MARKS = ("pump", "upstream.db")
"""Of which every data directory has one (log/directory.py)."""


def base_of(path: Path | None) -> Path:
    """The directory of a configuration file, by the name that it was called by: a link that is
    turned to another file moves no data."""
    return Path.cwd() if path is None else path.absolute().parent


def placed(config: Config, base: Path, typed: Collection[str]) -> dict[str, str]:
    """The paths that read otherwise once they count from their place; `typed` are keys of the
    command line. Raises ConfigError where data would be left behind."""
    found: dict[str, str] = {}
    for key, value in flattened(config):
        name = str(value).removeprefix(_UNIX)
        if key not in PATHS or not name or "://" in name:
            continue
        if key not in typed and not os.path.isabs(name):
            place = base / name
            _check_left_behind(key, name, place, Path(found.get(_DATA_DIR, config.data_dir)))
            name = name if key == _DATA_DIR and base == Path.cwd() else str(place)
        if name != value:
            found[key] = name
    return found


def _check_left_behind(key: str, name: str, place: Path, data_dir: Path) -> None:
    """`flattened` tells data-dir first, so that it is in its place for the others."""
    if key in (_DATA_DIR, _HISTORY):
        before = Path.cwd() / name
    elif key in _ONCE_BELOW_DATA_DIR:
        before = data_dir.absolute() / name
    else:
        return
    if before != place.absolute() and _holds(key, before) and not _holds(key, place):
        raise ConfigError(
            f'{key}: "{name}" is {place.absolute()} now, where nothing is, and was {before}, where'
            " data is: a relative path counts from the directory of the configuration file;"
            f' write {key} = "{before}", or move what is there'
        )


def _holds(key: str, place: Path) -> bool:
    """What may not be looked at is nothing, unless it is known to be a directory."""
    if key == _DATA_DIR:
        return any(os.path.exists(place / mark) for mark in _DATA_MARKS)
    try:
        return os.path.isfile(place) or bool(os.listdir(place))
    except OSError:
        return os.path.isdir(place)


PREFIX = "BINLOGD_"
CONFIG_VARIABLE = "BINLOGD_CONFIG"
TOKEN_VARIABLE = "BINLOGD_ADMIN_TOKEN"
_TOKEN_KEY = "security.admin-token"
_FILE = "_FILE"
_ORIGINAL_VARIABLES = {
    "syncer.to.host": "MYSQL_HOST",
    "syncer.to.port": "MYSQL_PORT",
    "syncer.to.user": "MYSQL_USER",
    "syncer.to.password": "MYSQL_PSWD",
}
_SECRET_BYTES_MAX = 64 << 10
_OF_KUBERNETES = re.compile(
    r"BINLOGD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"
)
"""Told to every container about a service named binlogd or so, beside `..._PORT=tcp://...`."""


class Settings(msgspec.Struct, frozen=True):
    """A configuration, and where each key that was given came from."""

    config: Config
    origins: Mapping[str, str]


class _Given(msgspec.Struct, frozen=True):
    value: Any
    origin: str


def read(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> Settings:
    """`overrides` are words of the command line, by key. Raises ConfigError."""
    text = "" if path is None else config.read_text(path)
    directory = base_of(path)
    tree = config.read_toml(text, str(path))
    source = str(path) if path is not None else "configuration"
    origins = dict.fromkeys(_leaves(tree), source)
    given = {
        **_from_environment(environ, directory),
        **{key: _Given(text, "command line") for key, text in (overrides or {}).items()},
    }
    said = {*origins, *given}
    for key, each in _of_the_original(environ).items():
        if said.isdisjoint((key, *_other_places(key))):
            given[key] = each
    if path is not None and given:
        config.from_tree(tree, source, text)  # so that the file is blamed for what is its own
        source = f"{path}, with {', '.join(sorted({each.origin for each in given.values()}))}"
    for key, each in given.items():
        for other in _other_places(key):
            if other not in given:
                _table_of(tree, other).pop(other.rpartition(".")[2], None)
                origins.pop(other, None)
        _table_of(tree, key)[key.rpartition(".")[2]] = each.value
        origins[key] = each.origin
    found = config.from_tree(tree, source, text)
    try:
        places = placed(found, directory, overrides or ())
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    for key, place in places.items():
        found = replaced(found, key, place)
    return Settings(_with_secrets(found, environ, origins), origins)


def shown(key: str, value: Any) -> Any:
    """A value as anybody may see it, in what JSON and TOML have."""
    if key.rpartition(".")[2].replace("-", "_") in SECRETS:
        return config.HIDDEN if value else ""
    return msgspec.to_builtins(value)


def replaced(table: Any, key: str, value: Any) -> Any:
    """The table with another value of one key."""
    name, _, rest = key.partition(".")
    field = name.replace("-", "_")
    new = replaced(getattr(table, field), rest, value) if rest else value
    return msgspec.structs.replace(table, **{field: new})


# --- the environment ---------------------------------------------------------------------


def variable_of(key: str) -> str:
    """The variable of a key."""
    return PREFIX + key.upper().replace("-", "_").replace(".", "__")


def _kind_of(key: str) -> Any:
    """What its value is to be."""
    kind: Any = Config
    for name in key.split("."):
        kind = kinds_of(kind)[name]
    return kind


def _from_environment(environ: Mapping[str, str], directory: Path) -> dict[str, _Given]:
    names = {variable_of(key): key for key in _KEYS} | {TOKEN_VARIABLE: _TOKEN_KEY}
    found: dict[str, _Given] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        plain = name.removesuffix(_FILE)
        key = names.get(name) or names.get(plain)
        if key is None and _is_of_kubernetes(name, environ[name]):
            continue
        if key is None:
            raise ConfigError(_unknown(name, [*names, CONFIG_VARIABLE]))
        if key in found:
            raise ConfigError(f"{found[key].origin} and {name} both say {key}; unset one of them")
        text = environ[name] if name in names else read_secret(directory / environ[name], name)
        found[key] = _Given(_converted(name, text, _kind_of(key)), name)
    return found


def _of_the_original(environ: Mapping[str, str]) -> dict[str, _Given]:
    """What a Drainer takes where nothing else says it. Source: tidb-binlog drainer/config.go,
    adjustConfig."""
    return {
        key: _Given(_converted(name, environ[name], _kind_of(key)), name)
        for key, name in _ORIGINAL_VARIABLES.items()
        if environ.get(name) and not _is_of_kubernetes(name, environ[name])
    }


def _is_of_kubernetes(name: str, value: str) -> bool:
    is_port = name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    return is_port or _OF_KUBERNETES.fullmatch(name) is not None


def _unknown(name: str, known: list[str]) -> str:
    ways = [each.removeprefix(PREFIX) for each in known]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), ways, n=1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "config/binlogd.toml has every key"
    return f"{name}: no such variable; {hint}"


def _converted(name: str, text: str, kind: Any) -> Any:
    """Text as it is where the key takes text; else a number, true or false, a list by commas, or
    what TOML has. Raises ConfigError, without the value."""
    origin, kinds = get_origin(kind), get_args(kind) or (kind,)
    if not is_utf8(text):
        raise ConfigError(f"{name}: is not UTF-8 text")
    try:
        if origin is dict or (origin is tuple and text.lstrip().startswith("[")):
            (value,) = tomllib.loads(f"value = {text}").values()  # or it says another key
            return value
        if origin is tuple:
            parts = [each.strip() for each in text.split(",")]
            return [_converted(name, each, kinds[0]) for each in parts if each]
        if kind in (Size, Seconds) or str in kinds or isinstance(kinds[0], str):
            return text  # what is no such quantity, or no word out of some, is named by the check
        plain = type(kinds[0]) if origin is Literal else kind
        return msgspec.convert(text, plain, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {right_form(plain)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: expected a list or table as TOML has it") from error


# --- secrets ----------------------------------------------------------------------------


def read_secret(path: Path, name: str) -> str:
    """What a file holds, without the end of its last line. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(_SECRET_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path} is not UTF-8 text") from None
    if len(data) > _SECRET_BYTES_MAX:
        raise ConfigError(f"{name}: {path} is too large for a secret")
    return text.removesuffix("\n").removesuffix("\r")


def _with_secrets(found: Config, environ: Mapping[str, str], origins: dict[str, str]) -> Config:
    """With every secret that stands elsewhere than in its key: such keys have one beside them that
    ends in `-file`."""
    values = dict(flattened(found))
    for key in values:
        secret = _secret(values, key, environ) if f"{key}{_IN_FILE}" in values else None
        if secret is None:
            continue
        if key == _TOKEN_KEY:
            named = f"{_TOKEN_KEY}{_IN_FILE}: {secret.origin}"
            if not secret.value:
                raise ConfigError(f"{named} is empty")
            check_token(secret.value, named)
        found = replaced(found, key, secret.value)
        origins[key] = secret.origin
    return found


def _secret(values: Mapping[str, Any], key: str, environ: Mapping[str, str]) -> _Given | None:
    """The original's order is kept: what is encrypted wins."""
    table, _, name = key.rpartition(".")
    encrypted = values[f"{table}.{_ENCRYPTED}"] if name == _PASSWORD else ""
    if encrypted:
        try:
            text = passwords.decrypt(encrypted, environ.get(passwords.KEY_VARIABLE, ""))
        except ConfigError as error:
            short = f"{table.removeprefix('syncer.')}.encrypted_password"
            raise ConfigError(f"failed to decrypt password in `{short}`: {error}") from error
        return _Given(text, f"{table}.encrypted_password")
    file = values[f"{key}{_IN_FILE}"]
    if not file:
        return None
    if values[key]:
        raise ConfigError(f"{key} and {key}{_IN_FILE}: give one of them")
    path = Path(file)
    return _Given(read_secret(path, f"{key}{_IN_FILE}"), str(path))


_IN_FILE, _PASSWORD, _ENCRYPTED = "-file", "password", "encrypted-password"


def _other_places(key: str) -> list[str]:
    """Keys that say the same in another way: what is given later takes the place of all."""
    table, _, name = key.rpartition(".")
    plain = _PASSWORD if name == _ENCRYPTED else name.removesuffix(_IN_FILE)
    if plain.replace("-", "_") not in SECRETS:
        return []
    ways = [plain, f"{plain}{_IN_FILE}", *([_ENCRYPTED] if plain == _PASSWORD else [])]
    return [f"{table}.{each}" for each in ways if each != name]


# --- trees ------------------------------------------------------------------------------


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    tables = {key.rpartition(".")[0] for key in _KEYS}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key in tables:
            yield from _leaves(value, f"{key}.")
        else:
            yield key


def _table_of(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """Made where it is not there."""
    for table in key.split(".")[:-1]:
        tree = tree.setdefault(table, {})
    return tree
