"""`/`: the page, and the files that it is made of, out of the package itself.

The browser is told to load nothing from elsewhere and to run nothing that is written into a page
(Content-Security-Policy), so that a table's name or a row's value stays text whatever it holds.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from aiohttp import web

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}
"""What is not said on every answer (guard.py)."""
_FIRST = "index.html"


def add_page(router: web.UrlDispatcher) -> None:
    """Adds the routes: one for each file."""
    for file in files("binlogd").joinpath("serving/page").iterdir():
        extension = file.name[file.name.rfind(".") :]
        if extension in _TYPES:
            path = "/" if file.name == _FIRST else f"/page/{file.name}"
            router.add_get(path, _File(file.read_bytes(), _TYPES[extension]).answer)


class _File:
    """One file, which a browser that has it need not fetch again."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._content, self._type = content, content_type
        self._tag = hashlib.sha256(content).hexdigest()[:20]

    async def answer(self, request: web.Request) -> web.Response:
        """The file with its ETag; 304 without a body to whoever names that."""
        known = request.if_none_match or ()
        is_known = any(each.value == self._tag for each in known)
        answer = web.Response(
            status=304 if is_known else 200,
            body=None if is_known else self._content,
            headers=_HEADERS,
        )
        if not is_known:
            answer.content_type, answer.charset = self._type, "utf-8"
        answer.etag = self._tag
        return answer
