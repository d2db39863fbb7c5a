"""Programs with granted hosts reach those, and neither others nor this machine, by no form of a URL."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.url_forms import url_forms
from tests.runtime.fake_internet import PUBLIC, FakeInternet, near_names
from tests.runtime.scripted import answer, scripted
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.egress.connections import HostProxy
from weft.runtime.egress.credentials import is_public
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Limits, ProcessOutcome
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure
from weft.runtime.tools.fetch_url import FetchUrlTool

ANY = parse_profile("network:*,*:22")
FORMS = url_forms()


async def asked(proxy: HostProxy, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def requests(url: str) -> Iterator[bytes]:
    """A URL as a client would hand it to a proxy, in plain and for a tunnel."""
    authority = url.partition("//")[2].partition("/")[0]
    yield f"GET {url} HTTP/1.1\r\nHost: public.example\r\n\r\n".encode()
    for port in ("", ":80", ":443"):
        yield f"CONNECT {authority}{port} HTTP/1.1\r\nHost: public.example\r\n\r\n".encode()


def test_there_are_so_many_forms() -> None:
    assert len(FORMS) >= 500


@pytest.mark.slow("four connections for each form of an address")
def test_no_form_of_a_near_address_passes_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every public host is granted. A name whose answer flips is connected to where it was checked."""
    internet = FakeInternet(monkeypatch, near_names())
    refused = 0

    async def run() -> None:
        nonlocal refused
        async with HostProxy(ANY.allows_endpoint) as proxy:
            for url in FORMS:
                for request in requests(url):
                    status = (await asked(proxy, request)).partition(b"\r\n")[0]
                    assert status.split(b" ")[1] in (b"400", b"403", b"502"), (url, request, status)
                    refused += 1

    asyncio.run(run())
    assert refused == 4 * len(FORMS)
    assert [address for address, _ in internet.connected if not is_public(address)] == []


def test_no_form_of_a_near_address_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    internet = FakeInternet(monkeypatch, near_names())
    tool = FetchUrlTool(ANY)
    context = ToolCallContext(turn="turn", call="call")

    async def run() -> None:
        for url in FORMS:
            with pytest.raises(ToolFailure):
                await tool.invoke({"url": url}, context)

    asyncio.run(run())
    assert [address for address, _ in internet.connected if not is_public(address)] == []


@pytest.mark.parametrize(
    "request_head",
    [
        "GET http://public.example/ HTTP/1.1\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: public.example\r\n\r\n",
        "GET http://public.example/ HTTP/2\r\n\r\n", "get http://public.example/ HTTP/1.1\r\n\r\n",
        "GET https://public.example/ HTTP/1.1\r\n\r\n", "GET  http://public.example/ HTTP/1.1\r\n\r\n",
        "POST http://public.example/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST http://public.example/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST http://public.example/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET http://public.example/ HTTP/1.1\r\n folded\r\n\r\n",
        "GET http://public.example/ HTTP/1.1\r\nA : b\r\n\r\n",
        "CONNECT public.example HTTP/1.1\r\n\r\n", "CONNECT http://public.example:443 HTTP/1.1\r\n\r\n",
        "CONNECT public.example:25 HTTP/1.1\r\n\r\n", "CONNECT other.example:443 HTTP/1.1\r\n\r\n", "\r\n\r\n",
    ],
)  # fmt: skip
def test_a_request_that_has_two_readings_or_no_grant_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_head: str
) -> None:
    internet = FakeInternet(monkeypatch, near_names())

    async def run() -> bytes:
        async with HostProxy(parse_profile("network:public.example").allows_endpoint) as proxy:
            return await asked(proxy, request_head.encode())

    assert asyncio.run(run()).split(b" ")[1] in (b"400", b"403", b"411")
    assert internet.connected == []


CLIENT = """
import json, socket, sys, urllib.error, urllib.request
answers = []
for url in json.loads(sys.argv[1]):
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            answers.append([reply.status, reply.read().decode()])
    except urllib.error.HTTPError as error:
        answers.append([error.code, error.read().decode()])
    except (OSError, ValueError) as error:
        answers.append([0, type(error).__name__])
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5)
    answers.append("connected")
except OSError as error:
    answers.append(type(error).__name__)
print(json.dumps(answers))
"""


async def run_client(runner: CommandRunner, urls: list[str], port: int, workspace: Path) -> ProcessOutcome:
    """Python in the sandbox, which takes the proxy from its environment as most programs do."""
    profile = parse_profile("network:public.example,private.example")
    (workspace / "client.py").write_text(CLIENT)
    python = str(Path(sys.executable).resolve())
    argv = [python, "-I", "-S", "-B", "client.py", json.dumps(urls), str(port)]
    return await runner.run(profile, argv, workspace=workspace, limits=Limits(seconds=60))


def test_a_program_reaches_granted_hosts_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One start of the sandbox: a granted host, a redirect to a near one, hosts that are not granted, a bare socket."""
    redirect = (
        b"HTTP/1.1 302 Found\r\nLocation: http://private.example/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    other = redirect.replace(b"private.example", b"other.example")
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox())

    async def run() -> tuple[ProcessOutcome, Any, Any]:
        async with scripted(answer(200, {"hello": 1}), [redirect, "close"], [other, "close"]) as server:
            names = {**near_names(), "other.example": [[PUBLIC]]}
            port = int(server.url.rpartition(":")[2])
            internet = FakeInternet(monkeypatch, names, port)
            urls = [
                "http://public.example/hello?x=1", "http://public.example/to-private", "http://public.example/to-other",
                "http://other.example/", "http://private.example/", "http://127.0.0.1/", "https://169.254.169.254/",
                "http://public.example:8080/",
            ]  # fmt: skip
            return await run_client(runner, urls, port, tmp_path), server.received, internet.connected

    outcome, received, connected = asyncio.run(run())
    assert outcome.succeeded, outcome
    hello, *refusals, bare = json.loads(outcome.stdout)
    assert hello == [200, '{"hello": 1}']
    assert received[0].path == "/hello?x=1"
    assert received[0].headers["host"] == "public.example"
    assert [status for status, _ in refusals[:4]] == [403, 403, 403, 403]
    assert all(status in (0, 403) for status, _ in refusals)
    assert bare == "ConnectionRefusedError"
    assert connected == [(PUBLIC, 80)] * 3
    assert "private.example:80 it leads to a private address" in outcome.refused_hosts
    assert "other.example:80 this host is not granted" in outcome.refused_hosts


def test_a_tunnel_carries_bytes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> bytes:
        async with scripted(answer(200, {"hello": 1})) as server:
            FakeInternet(monkeypatch, near_names(), int(server.url.rpartition(":")[2]))
            async with HostProxy(parse_profile("network:public.example").allows_endpoint) as proxy:
                reader, writer = await asyncio.open_unix_connection(str(proxy.socket))
                writer.write(b"CONNECT public.example:443 HTTP/1.1\r\n\r\n")
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
                writer.write(b"GET /inside HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                reply = await reader.readuntil(b"}")
                writer.close()
                return reply

    assert b"hello" in asyncio.run(run())


def test_what_follows_a_plain_request_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> tuple[bytes, Any]:
        async with scripted([*answer(200, {}), "close"]) as server:
            FakeInternet(monkeypatch, near_names(), int(server.url.rpartition(":")[2]))
            async with HostProxy(parse_profile("network:public.example").allows_endpoint) as proxy:
                second = b"GET http://other.example/second HTTP/1.1\r\nHost: other.example\r\n\r\n"
                first = (
                    b"POST http://public.example/first HTTP/1.1\r\nHost: other.example\r\nContent-Length: 2\r\n\r\n{}"
                )
                reply = await asked(proxy, first + second)
                return reply, server.received

    reply, received = asyncio.run(run())
    assert reply.count(b"HTTP/1.1") == 1
    assert [(one.path, one.headers["host"]) for one in received] == [("/first", "public.example")]


def test_the_socket_of_the_proxy_is_gone_with_it() -> None:
    async def run() -> Path:
        async with HostProxy(ANY.allows_endpoint) as proxy:
            assert proxy.socket.parent.stat().st_mode & 0o077 == 0
            return proxy.socket

    assert not asyncio.run(run()).parent.exists()
