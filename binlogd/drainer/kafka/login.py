"""How Kafka is logged in to, and where the token for OAUTHBEARER comes from.

A token is had anew at each login: out of a file, or from an identity provider that is shown a
client's id and secret. Source: RFC 6749, 2.3.1 and 4.4; RFC 7628.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from errno import EINVAL
from pathlib import Path
from urllib.parse import quote_plus

import msgspec
from aiokafka.abc import AbstractTokenProvider

from binlogd.host.http import NoAnswer, basic_login, http_session
from binlogd.host.tls import ClientTls

TOKEN_BYTES_MAX = 64 << 10
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class KafkaLogin:
    """By SASL: user and password, or a token (OAUTHBEARER) that stands in `token_file` or that
    `token_url` gives to the client `user` with the secret `password`."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    token_file: str = ""
    token_url: str = ""
    token_scope: str = ""

    @property
    def is_shown(self) -> bool:
        """Whether the secret itself goes over the wire."""
        return not self.mechanism.startswith("SCRAM")

    @property
    def token_from(self) -> str:
        """Where a token comes from; "" where there is none."""
        return self.token_file or self.token_url

    @property
    def todo_token(self) -> str:
        """What to do where none comes."""
        if self.token_file:
            return "have whoever makes tokens write one to syncer.to.kafka-token-file"
        return (
            "check syncer.to.kafka-token-url and kafka-token-scope, and the client's id and secret"
            " in syncer.to.user and password"
        )


def token_provider(login: KafkaLogin, tls: ClientTls | None) -> AbstractTokenProvider:
    """Its `token` raises OSError that names `token_from`; `tls` is for a URL with https."""
    return _TokenFile(login.token_file) if login.token_file else _TokenUrl(login, tls)


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    """Who puts a new token there has it used when the old one ends."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def token(self) -> str:
        with self._path.open("rb") as file:
            return _checked(file.read(TOKEN_BYTES_MAX + 1), str(self._path))


class _TokenUrl(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    """The grant "client credentials" of OAuth 2.0."""

    def __init__(self, login: KafkaLogin, tls: ClientTls | None) -> None:
        self._login, self._tls = login, tls

    async def token(self) -> str:
        """A new token, asked for each time. Raises OSError, with the URL, for every answer that has
        none, and for none."""
        login, url = self._login, self._login.token_url
        shown = basic_login(quote_plus(login.user), quote_plus(login.password))
        form = {"grant_type": "client_credentials"}
        form |= {"scope": login.token_scope} if login.token_scope else {}
        try:
            async with http_session(ANSWER_S, self._tls) as asking:
                answer = await asking.ask(
                    "POST",
                    url,
                    bytes_max=TOKEN_BYTES_MAX,
                    data=form,
                    headers={**shown, "Accept": "application/json"},
                    allow_redirects=False,
                )
            if answer.status != 200:
                raise OSError(EINVAL, answer.refusal, url)
            found = msgspec.json.decode(answer.body, type=_Granted)
        except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OSError(EINVAL, str(error), url) from error
        return _checked(found.access_token.encode(), url)


class _Granted(msgspec.Struct):
    access_token: str


def _checked(data: bytes, place: str) -> str:
    token = data.decode("ascii", "replace").strip()
    if not token or len(data) > TOKEN_BYTES_MAX or not token.isprintable():
        raise OSError(EINVAL, "it holds no token", place)
    return token
