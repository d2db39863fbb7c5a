"""The connection to an engine: a real one, and sockets that behave badly."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weft.kernel.errors import (
    EngineObjectMissing,
    EngineRefused,
    EngineUnreachable,
    InvalidInput,
    LimitExceeded,
    Unsupported,
)
from weft.runtime.resources import container_engine as engine_module
from weft.runtime.resources.container_engine import (
    ContainerEngine,
    EngineLimits,
    EngineSubject,
    collected,
    container_path,
    frames,
    image_path,
    volume_path,
)

SHORT = EngineLimits(call_seconds=1, transfer_seconds=1, transfer_bytes=1000)
"""For engines that do not answer: those that do may take their time on a busy machine."""
PATIENT = EngineLimits(call_seconds=60, transfer_seconds=60, transfer_bytes=1000)
VERSION = b'{"ApiVersion": "1.41", "Components": [{"Name": "Engine"}], "Version": "9", "Experimental": false}'


def answer(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A socket that gives these answers, one for each request, and then says nothing more until the end."""
    ends: list[Callable[[], None]] = []

    def start(*answers: bytes) -> str:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = tmp_path / "engine.sock"
        listener.bind(str(path))
        listener.listen()
        left, open_now = list(answers), []

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                open_now.append(connection)
                try:
                    while connection.recv(65_536):
                        if left:
                            connection.sendall(left.pop(0))
                except OSError:
                    continue

        thread = threading.Thread(target=run)
        thread.start()

        def end() -> None:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in open_now:
                connection.close()
            thread.join()
            listener.close()

        ends.append(end)
        return f"unix://{path}"

    yield start
    for end in ends:
        end()


def test_an_engine_says_what_it_is(engine: ContainerEngine) -> None:
    engine.ping()
    facts = engine.facts()
    assert facts.product in ("podman", "docker")
    assert facts.archives_have_owners is (facts.product == "docker")
    assert facts.platform.startswith("linux/")
    assert float(facts.api_version) >= 1.4


def test_what_the_engine_does_not_have_is_missing_and_what_it_refuses_is_told(engine: ContainerEngine) -> None:
    with pytest.raises(EngineObjectMissing, match="no container 'gone'") as missing:
        engine.call("GET", "/containers/gone/json", asked="describe", about=EngineSubject("container", "gone"))
    assert (missing.value.what, missing.value.name, missing.value.lasting) == ("container", "gone", True)
    with pytest.raises(EngineRefused, match="refused to make a container") as refused:
        engine.call("POST", "/containers/create", asked="make a container", body={"Image": "never-pulled"})
    assert refused.value.status in (404, 500)
    assert refused.value.hint


def test_where_no_engine_is_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with ContainerEngine(f"unix://{path}") as engine, pytest.raises(EngineUnreachable, match="no such socket"):
        engine.ping()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with ContainerEngine(f"unix://{path}") as engine, pytest.raises(EngineUnreachable, match="nobody listens") as error:
        engine.ping()
    assert "start the container engine" in error.value.hint


def test_an_engine_that_does_not_answer_is_given_up(serve: Serve) -> None:
    with ContainerEngine(serve(), limits=SHORT) as engine, pytest.raises(EngineUnreachable, match="in time"):
        engine.facts()


def test_an_engine_that_stops_within_an_answer_is_given_up(serve: Serve) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nfirst"
    with ContainerEngine(serve(answer(VERSION), half), limits=SHORT) as engine, pytest.raises(EngineUnreachable):
        engine.call("GET", "/volumes", asked="list volumes")


@pytest.mark.parametrize("body", [b"{}", b'{"ApiVersion": "../../x"}', b"not json", b"[]"])
def test_what_is_no_engine_is_refused(serve: Serve, body: bytes) -> None:
    with ContainerEngine(serve(answer(body)), limits=PATIENT) as engine, pytest.raises(EngineRefused):
        engine.facts()


def test_a_compressed_answer_is_refused(serve: Serve) -> None:
    packed = answer(VERSION, more="Content-Encoding: gzip\r\n")
    with ContainerEngine(serve(packed), limits=PATIENT) as engine, pytest.raises(EngineRefused, match="compressed"):
        engine.facts()


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    moved = answer(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n")
    with ContainerEngine(serve(moved), limits=PATIENT) as engine, pytest.raises(EngineRefused, match="302"):
        engine.ping()


def test_an_answer_that_is_too_long_is_not_held(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_ANSWER_BYTES", 200)
    with (
        ContainerEngine(serve(answer(VERSION), answer(b" " * 5000)), limits=PATIENT) as engine,
        pytest.raises(LimitExceeded),
    ):
        engine.call("GET", "/volumes", asked="list volumes")


def test_a_stream_is_cut_when_its_time_is_over(serve: Serve) -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nfirst"
    with ContainerEngine(serve(answer(VERSION), endless), limits=PATIENT) as engine:
        with engine.stream("GET", "/x", asked="stream", seconds=2) as stream:
            assert b"".join(stream.chunks()) == b"first"
        assert stream.is_cut


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nfirst", EngineUnreachable),
        (answer(bytes(2000)), LimitExceeded),
    ],
)
def test_a_transfer_is_whole_or_an_error(serve: Serve, reply: bytes, error: type[Exception]) -> None:
    with (
        ContainerEngine(serve(answer(VERSION), reply), limits=SHORT) as engine,
        pytest.raises(error, match=r"to read it"),
    ):
        list(engine.transfer("/x", asked="read it", about=EngineSubject("volume", "x")))


def test_the_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.setitem(sys.modules, "docker.transport", None)
    monkeypatch.delitem(sys.modules, "weft.runtime.resources.engine_transport", raising=False)
    with pytest.raises(Unsupported, match="needs the package") as error:
        ContainerEngine()
    assert "weft[docker]" in error.value.hint


@pytest.mark.parametrize(
    "address",
    [
        "tcp://192.0.2.1:2375",
        "tcp://127.0.0.1.example.com:2375",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:x",
        "tcp://user:pw@127.0.0.1:2375",
        "http://127.0.0.1:2375/path",
        "https://127.0.0.1:2376",
        "ssh://root@host",
        "unix://relative/path",
        "npipe:////./pipe/docker_engine",
        "",
    ],
)
def test_an_address_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="on this machine"):
        ContainerEngine(address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "http://[::1]:1"])
def test_a_port_of_this_machine_is_taken(address: str) -> None:
    with ContainerEngine(address, limits=SHORT) as engine, pytest.raises(EngineUnreachable):
        engine.ping()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?x=1", "a#b", "a b", "-x", "x" * 256, "a\n"])
def test_a_name_that_would_be_another_path_is_refused(name: str) -> None:
    for path in (volume_path, container_path):
        with pytest.raises(InvalidInput):
            path(name)


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "a?b", "a#b", "a b", "a\n"])
def test_an_image_that_would_be_another_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        image_path(name)


def frame(kind: int, data: bytes) -> bytes:
    return bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("step", [1, 3, 8, 1000])
def test_output_is_put_together_however_it_comes(step: int) -> None:
    data = frame(1, b"hello") + frame(2, b"oops") + frame(1, b"") + frame(1, b" world")
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    output = collected(frames(chunks), 100)
    assert (output.stdout, output.stderr, output.is_truncated) == (b"hello world", b"oops", False)
    short = collected(frames(chunks), 4)
    assert (short.stdout, short.stderr, short.is_truncated) == (b"hell", b"oops", True)


def test_output_that_is_no_stream_of_frames_is_refused() -> None:
    with pytest.raises(EngineRefused, match="malformed"):
        list(frames([b"plain text that nobody framed"]))
