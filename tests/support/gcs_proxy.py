"""A server before fake-gcs-server that knows what delta-rs asks of Google's XML interface besides:
PUT of an object, with the condition that there is none yet, and `start-after` of a listing.

    python -m tests.support.gcs_proxy PORT PORT_OF_FAKE_GCS_SERVER
"""

from __future__ import annotations

import asyncio
import sys
from xml.etree import ElementTree

from aiohttp import ClientResponse, ClientSession, web
from yarl import URL

_OF_THE_WAY = {"transfer-encoding", "content-length", "content-encoding", "connection"}
_CONDITION = "x-goog-if-generation-match"


async def _serve(port: int, behind: int) -> None:
    where = f"http://127.0.0.1:{behind}"
    async with ClientSession(auto_decompress=False) as session:

        async def passed_on(request: web.BaseRequest) -> web.Response:
            content = await request.read() or None
            if request.method == "PUT":
                return await put(request, content)
            url = URL(f"{where}{request.raw_path}", encoded=True)
            headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
            async with session.request(
                request.method, url, headers=headers, data=content
            ) as answer:
                told = await _told(answer)
            if (after := request.query.get("start-after")) and told.status == 200:
                told.body = _after(after, told.body)
            return told

        async def put(request: web.BaseRequest, content: bytes | None) -> web.Response:
            _, bucket, name = request.path.split("/", 2)
            asked = {"uploadType": "media", "name": name}
            if condition := request.headers.get(_CONDITION):
                asked["ifGenerationMatch"] = condition
            url = URL(f"{where}/upload/storage/v1/b/{bucket}/o").with_query(asked)
            async with session.post(url, data=content or b"") as answer:
                if answer.status != 200:
                    return await _told(answer)
                made = await answer.json()
            tag = {"ETag": f'"{made["generation"]}"', "x-goog-generation": made["generation"]}
            return web.Response(headers=tag)

        runner = web.ServerRunner(web.Server(passed_on))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()  # until it is killed


def _after(name: str, listing: object) -> bytes:
    assert isinstance(listing, bytes)
    found = ElementTree.fromstring(listing)
    for each in [one for one in found.findall("Contents") if (one.findtext("Key") or "") <= name]:
        found.remove(each)
    listed: bytes = ElementTree.tostring(found, encoding="utf-8", xml_declaration=True)
    return listed


async def _told(answer: ClientResponse) -> web.Response:
    headers = {k: v for k, v in answer.headers.items() if k.lower() not in _OF_THE_WAY}
    return web.Response(status=answer.status, headers=headers, body=await answer.read())


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:3])))
