"""Outgoing connections: where they may go, and what goes with them."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2
import pytest

from tests.runtime.inference.asking import HI, model, person, provider
from tests.runtime.scripted import HANG, Received, answer, scripted
from weft.kernel.errors import ConnectionForbidden, InvalidInput, ProviderUnreachable
from weft.runtime.egress.connections import Connections
from weft.runtime.egress.credentials import ConnectionRules, Secret, ensure_safe, is_public, may_reach
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import InferenceRequest

CANARY = "sk-canary-connection"
OPEN = ConnectionRules()


async def get(
    url: str, base: str, keys: Mapping[str, Secret] = MappingProxyType({}), rules: ConnectionRules = OPEN, **how: Any
) -> httpx2.Response:
    connections = Connections()
    try:
        client, _ = connections.client(base, keys, rules)
        return await client.get(url, **how)
    finally:
        await connections.aclose()


def received(headers: dict[str, str], keys: Mapping[str, Secret]) -> Received:
    async def run() -> Received:
        async with scripted(answer(200, {})) as server:
            await get(f"{server.url}/x", server.url, keys, headers=headers)
            return server.received[0]

    return asyncio.run(run())


def test_keys_are_put_in_here_and_nobody_elses_go_out() -> None:
    theirs = {
        "authorization": "Bearer theirs",
        "x-api-key": "theirs",
        "cookie": "a=theirs",
        "openai-organization": "theirs",
    }
    got = received(theirs, {"x-api-key": Secret(CANARY)})
    assert got.headers["x-api-key"] == CANARY
    assert "theirs" not in str(got.headers)


def test_the_request_that_a_library_sees_has_no_key() -> None:
    async def run() -> httpx2.Response:
        async with scripted(answer(200, {})) as server:
            return await get(server.url, server.url, {"x-api-key": Secret(CANARY)})

    assert CANARY not in str(asyncio.run(run()).request.headers)


def test_a_client_reaches_one_origin_alone() -> None:
    async def run() -> None:
        async with scripted(answer(200, {})) as other, scripted(answer(302, b"", location=f"{other.url}/x")) as server:
            for url in (other.url, server.url):
                with pytest.raises(ConnectionForbidden, match="was sent on to"):
                    await get(url, server.url, {"x-api-key": Secret(CANARY)}, follow_redirects=True)
            assert other.received == []

    asyncio.run(run())


def test_a_redirect_within_the_origin_is_followed_where_that_is_asked_for() -> None:
    async def run() -> int:
        async with scripted(answer(302, b"", location="/y"), answer(200, {})) as server:
            return (await get(server.url, server.url, follow_redirects=True)).status_code

    assert asyncio.run(run()) == 200


def test_a_name_that_leads_to_this_machine_is_refused_unless_the_url_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leads_here(_: object, host: str, port: int, **__: object) -> list[Any]:
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    async def run() -> None:
        monkeypatch.setattr("asyncio.BaseEventLoop.getaddrinfo", leads_here)
        with pytest.raises(ConnectionForbidden, match="leads to a private address"):
            await get("https://example.com/x", "https://example.com")
        async with scripted(answer(200, {})) as server:
            port = server.url.rpartition(":")[2]
            for base, rules in (
                (f"http://localhost:{port}", OPEN),
                (f"http://example.com:{port}", ConnectionRules(allow_private=True)),
            ):
                assert (await get(f"{base}/x", base, rules=rules)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "address", "allowed"),
    [
        ("example.com", "8.8.8.8", True),
        ("example.com", "10.0.0.1", False),
        ("example.com", "169.254.169.254", False),
        ("example.com", "::ffff:127.0.0.1", False),
        ("localhost", "127.0.0.1", True),
        ("localhost", "::1", True),
        ("localhost", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_an_address_is_reached_only_if_the_url_means_it(host: str, address: str, allowed: bool) -> None:
    assert may_reach(host, address, OPEN) is allowed
    assert may_reach(host, address, ConnectionRules(allow_private=True)) or host == "localhost"


@pytest.mark.parametrize("address", ["0.0.0.0", "100.64.0.1", "224.0.0.1", "fe80::1%eth0", "fd00::1", "2002:7f00:1::"])
def test_what_is_not_of_the_internet_is_not_public(address: str) -> None:
    assert not is_public(address)


def test_without_tls_only_servers_that_the_url_names_as_near() -> None:
    for near in ("http://localhost:1", "http://127.0.0.1:1", "http://192.168.1.5", "https://example.com"):
        ensure_safe(near, OPEN)
    with pytest.raises(ConnectionForbidden, match="has no TLS"):
        ensure_safe("http://example.com", OPEN)


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def run() -> None:
        async with scripted([HANG]) as server:
            with pytest.raises(httpx2.ReadTimeout):
                await get(server.url, server.url, rules=ConnectionRules(read_seconds=0.1), timeout=None)

    asyncio.run(run())


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def run() -> None:
        async with scripted(answer(200, {}), tls=context) as server:
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await get(server.url, server.url)
            assert (
                await get(server.url, server.url, rules=ConnectionRules(ca_file=str(certificate)))
            ).status_code == 200

    asyncio.run(run())
    for path in ("/no/such/file", str(key)):
        with pytest.raises(InvalidInput):
            Connections().client("https://example.com", {}, ConnectionRules(ca_file=path))


def test_a_server_with_a_wrong_certificate_is_asked_once(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed(tmp_path))
    retries: list[Any] = []

    async def run() -> None:
        async with scripted(answer(200, {}), tls=context) as server:
            asked = model(server.url, provider=provider(server.url, credential=None))
            async with Inference(on_retry=lambda *failed: retries.append(failed)) as inference:
                with pytest.raises(ProviderUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
                    await inference.infer(InferenceRequest(model=asked, messages=HI), context=person(server.url))

    asyncio.run(run())
    assert retries == []


def self_signed(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return certificate, secret
