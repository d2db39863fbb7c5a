"""What is refused before a request is looked at: by size, pace and number, and by the name that it was sent to."""

from __future__ import annotations

import datetime
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path

import httpx2
import pytest
from starlette.requests import Request

from tests.surfaces.server.site import BASE_URL, Site, open_site
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_serve import served, token_of
from weft.kernel.errors import InvalidInput
from weft.surfaces.server import application, guards, serving
from weft.surfaces.server.guards import HostGuard, RateLimit
from weft.surfaces.server.problems import Refusal
from weft.surfaces.server.serving import TlsFiles, listen


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site() as site:
        yield site


# --- Sizes and rates.


def test_an_address_or_a_head_that_is_too_large_is_refused_before_anything_else(site: Site) -> None:
    long = "x" * guards.MOST_TARGET_BYTES
    assert site.ask("GET", f"/api/v1/sessions?label={long}").status == 414
    assert site.ask("GET", f"/{long}", token=None).status == 414
    many = {f"x-{n}": "y" for n in range(guards.MOST_HEADERS)}
    assert site.ask("GET", "/api/v1/sessions", headers=many).status == 431
    assert site.ask("GET", "/api/v1/sessions", headers={"x-long": "y" * guards.MOST_HEAD_BYTES}).status == 431
    assert site.ask("GET", "/api/v1/sessions", headers={"x-long": "y" * 60_000}).status == 200


@pytest.mark.parametrize("path", ["/api/v1/sign-in", "/api/v1/invitations", "/api/v1/sessions"])
def test_a_body_is_as_deep_and_as_long_as_json_of_people(site: Site, path: str) -> None:
    for content in (b"[" * 500_000, b'{"a":' * 100_000, b'{"name": "' + b"x" * 2_000_000 + b'"}', b"9" * 400_000):
        started = time.monotonic()
        answered = site.ask("POST", path, content=content, headers={"content-type": "application/json"})
        assert 400 <= answered.status < 500, (path, answered.body)
        assert time.monotonic() - started < 20
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip"):
        headers = {"content-type": "application/json", "content-encoding": coding}
        assert site.ask("POST", path, content=b"\x1f\x8b" * 1000, headers=headers).status == 415


def test_a_credential_that_asks_in_a_circle_waits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(application, "MOST_PER_SECOND", 0.001)
    site.application = application.Application(site.served)
    token, other = site.token(), site.token("ann")
    statuses = [site.ask("GET", "/api/v1/sessions", token=token).status for _ in range(4)]
    refused = site.ask("GET", "/api/v1/sessions", token=token)
    assert statuses == [200, 200, 200, 429]
    assert (refused.json["code"], int(refused.headers["retry-after"]) > 0) == ("too_many_requests", True)
    assert site.ask("GET", "/api/v1/sessions", token=other).status != 429


def test_a_limit_gives_back_over_time_and_remembers_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limit = RateLimit(2, per_second=0.5, seconds=lambda: now[0])
    limit.take("a")
    limit.take("a")
    with pytest.raises(Refusal) as refused:
        limit.take("a")
    assert refused.value.headers == {"retry-after": "2"}
    limit.take("b")
    now[0] = 2.0
    limit.take("a")
    limit.give_back("a")
    limit.take("a")
    with pytest.raises(Refusal):
        limit.take("a")
    monkeypatch.setattr(guards, "MOST_LIMITED", 10)
    for n in range(100):
        limit.take(str(n))
    assert len(limit._left) == 10


# --- T27: connections on which no request comes.


def raw(url: str, sent: bytes, timeout: float = 30.0) -> bytes:
    """All that is answered to these bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connected:
        connected.sendall(sent)
        answer = b""
        while part := connected.recv(65536):
            answer += part
        return answer


def _sent_until_closed(connected: socket.socket, most: int) -> int:
    """How many bytes the other end takes before it closes."""
    for sent in range(0, most, 65536):
        try:
            connected.sendall(b"y" * 65536)
        except (ConnectionError, BrokenPipeError):
            return sent
    return most


def test_a_head_without_end_is_cut_off(shell: Shell) -> None:
    shell("init")
    with served(shell, "--no-broker") as (_, url):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connected:
            connected.sendall(b"GET / HTTP/1.1\r\nx-long: ")
            sent = _sent_until_closed(connected, 64 * 1024 * 1024)
        assert sent < 32 * 1024 * 1024
        assert httpx2.get(f"{url}/health").status_code == 200


def test_others_are_answered_while_many_send_nothing_or_too_much(shell: Shell) -> None:
    """Slow heads, slow bodies, large bodies and floods of headers, two hundred connections of them."""
    shell("init")
    headers = token_of(shell)
    head = b"POST /api/v1/sign-in HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
    with served(shell, "--no-broker") as (process, url):
        host, _, port = url.removeprefix("http://").partition(":")
        begun = head % url.removeprefix("http://").encode()
        beginnings = (
            b"GET /hea",
            begun,
            begun + b"content-length: 100\r\n\r\n{",
            begun + b"content-length: 900000000\r\n\r\n{",
            begun + b"x-a: y\r\n" * 5000,
        )
        before = resident_bytes(process.pid)
        connections = [socket.create_connection((host, int(port)), timeout=30) for _ in range(200)]
        try:
            for n, connected in enumerate(connections):
                connected.sendall(beginnings[n % len(beginnings)])
            with ThreadPoolExecutor(4) as pool:
                asked = pool.map(
                    lambda _: httpx2.get(f"{url}/api/v1/sessions", headers=headers, timeout=60).status_code, range(20)
                )
                assert set(asked) == {200}
        finally:
            for connected in connections:
                connected.close()
        assert resident_bytes(process.pid) - before < 200 * 1024 * 1024


def resident_bytes(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def test_a_head_that_does_not_come_is_waited_for_so_long(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    shell("init")
    with served(shell, "--no-broker") as (_, url):  # forked: it has the same setting
        assert raw(url, b"GET /health HTTP/1.1\r\nhost: ").startswith(b"HTTP/1.1 408")
        assert raw(url, b"").startswith(b"HTTP/1.1 408")
        host = url.removeprefix("http://").encode()
        asked = b"GET /health HTTP/1.1\r\nhost: " + host + b"\r\n\r\n"
        assert raw(url, asked + asked[:20]).startswith(b"HTTP/1.1 200")


def test_a_process_takes_no_more_connections_than_it_may_have_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert serving.most_connections() == 4096 - serving.OWN_DESCRIPTORS
    assert limits[-1] == (4096, 4096)
    for enough in ((1_000_000, 1_000_000), (1024, resource.RLIM_INFINITY), (resource.RLIM_INFINITY,) * 2):
        limits.append(enough)
        assert serving.most_connections() == serving.MOST_CONNECTIONS
        assert limits[-1][0] in (enough[0], serving.MOST_CONNECTIONS + serving.OWN_DESCRIPTORS)


# --- Addresses that others reach.


def certificate(folder: Path, *names: str) -> TlsFiles:
    """Signed by itself, for these hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    named = [x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names]
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(named), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem, traditional = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, traditional, plain))
    return TlsFiles(str(folder / "certificate.pem"), str(folder / "key.pem"))


def test_an_address_that_others_reach_needs_tls_or_a_stated_proxy(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(InvalidInput, match="read on the way"):
            listen(0, host)
    with pytest.raises(InvalidInput, match="no address"):
        listen(0, "weft.example.com")
    for url in ("http://weft.example.com", "weft.example.com", "https://", "https://weft.example.com/x", ""):
        with pytest.raises(InvalidInput, match="no address of a proxy"):
            listen(0, "0.0.0.0", behind=url)
    (tmp_path / "nothing.pem").write_text("nothing")
    for name in ("nothing.pem", "missing.pem"):
        with pytest.raises(InvalidInput, match="no certificate"):
            listen(0, "0.0.0.0", TlsFiles(str(tmp_path / name), str(tmp_path / name)))


def test_over_tls_it_answers_for_the_names_of_its_certificate(shell: Shell, tmp_path: Path) -> None:
    tls = certificate(tmp_path, "weft.example.com", "*.team.example.com", "127.0.0.1")
    assert tls.names() == ("weft.example.com", "*.team.example.com", "127.0.0.1")
    shell("init")
    headers = token_of(shell)
    options = ("--no-broker", "--host", "127.0.0.1", "--tls-certificate", tls.certificate, "--tls-key", tls.key)
    with served(shell, *options) as (_, url):
        port = url.rpartition(":")[2]
        assert url == f"https://weft.example.com:{port}"
        trusting = ssl.create_default_context(cafile=tls.certificate)
        with httpx2.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, headers=headers) as client:
            names = {
                f"weft.example.com:{port}": 200,
                f"a.team.example.com:{port}": 200,
                f"127.0.0.1:{port}": 200,
                f"a.b.team.example.com:{port}": 421,
                f"team.example.com:{port}": 421,
                "evil.example": 421,
            }
            answered = {name: client.get("/api/v1/me", headers={"host": name}) for name in names}
        assert {name: response.status_code for name, response in answered.items()} == names
        assert "strict-transport-security" in answered[f"127.0.0.1:{port}"].headers


def asked_of(hosts: HostGuard, **headers: str) -> Request:
    raw_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw_headers, "client": ("10.0.0.7", 1)})


def test_a_stated_proxy_alone_says_who_asks_and_by_which_name() -> None:
    behind, plain = HostGuard.behind("https://weft.example.com"), HostGuard(8420)
    name = "weft.example.com"
    behind.check(asked_of(behind, host=name, x_forwarded_proto="https", origin=f"https://{name}"))
    behind.check(asked_of(behind, host=f"{name}:443"))
    for status, headers in (
        (421, {"host": "127.0.0.1:8420"}),
        (421, {"host": "evil.example"}),
        (421, {"host": name, "x_forwarded_host": "evil.example"}),
        (421, {"host": "evil.example", "x_forwarded_host": name}),
        (403, {"host": name, "x_forwarded_proto": "http"}),
        (403, {"host": name, "origin": f"http://{name}"}),
        (403, {"host": name, "origin": "null"}),
    ):
        with pytest.raises(Refusal) as refused:
            behind.check(asked_of(behind, **headers))
        assert refused.value.status == status, headers
    forged = {"host": name, "x_forwarded_for": "1.1.1.1, 203.0.113.9"}
    assert behind.client_address(asked_of(behind, **forged)) == "203.0.113.9"
    assert plain.client_address(asked_of(plain, **forged)) == "10.0.0.7"
    with pytest.raises(Refusal):  # who is no proxy of ours does not choose the name
        plain.check(asked_of(plain, host="evil.example", x_forwarded_host="127.0.0.1:8420"))


def test_over_https_the_cookie_belongs_to_this_very_host() -> None:
    behind = listen(0, behind="https://weft.example.com")
    plain = listen(0)
    try:
        assert (behind.cookie_name, behind.url) == ("__Host-weft", "https://weft.example.com")
        assert plain.cookie_name == f"weft-{plain.taken.getsockname()[1]}"
    finally:
        behind.taken.close()
        plain.taken.close()


def test_a_cookie_over_https_is_secure() -> None:
    with open_site() as site:
        site.served.callers.cookie_name = "__Host-weft"
        entered = site.ask("GET", f"/sign-in/{site.accounts.owner_link().code}", token=None)
    assert entered.headers["set-cookie"].startswith("__Host-weft=")
    assert {"Secure", "Path=/"} < {*entered.headers["set-cookie"].split("; ")}
    assert "Domain" not in entered.headers["set-cookie"]
    assert BASE_URL.startswith("http:")
