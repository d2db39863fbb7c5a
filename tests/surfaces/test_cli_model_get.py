"""`weft model get`: known models are fetched from a server or taken from a file, checked, and run."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

from tests.surfaces.shell import Shell
from weft.kernel.errors import ConnectionForbidden
from weft.runtime.inference import local_models
from weft.runtime.inference.local_models import MODEL_FILES, SHA256, ModelFile, _next_url, find_model_file, find_weights

WEIGHTS = bytes(range(256)) * 400
NAME = "tiny-instruct"


class FileServer:
    """Serves the weights over HTTP, as it is told to, and notes where each request began."""

    def __init__(self) -> None:
        self.content, self.cuts, self.knows_ranges, self.status = WEIGHTS, [0], True, 200
        self.begun: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/elsewhere":
                    self.send_response(302)
                    self.send_header("location", "/tiny.gguf")
                    self.end_headers()
                    return
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                """Nothing is written to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("range", "")
        self.begun.append(asked)
        assert request.headers.get("authorization") is None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.knows_ranges else 0
        content, whole = self.content[start:], len(self.content)
        request.send_response(self.status if self.status != 200 else 206 if start else 200)
        request.send_header("content-length", str(len(content)))
        if start:
            request.send_header("content-range", f"bytes {start}-{whole - 1}/{whole}")
        request.end_headers()
        cut = self.cuts.pop(0) if len(self.cuts) > 1 else self.cuts[0]
        request.wfile.write(content[:cut] if cut else content)
        request.close_connection = True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[FileServer]:
    server = FileServer()
    yield server
    server.close()


@pytest.fixture
def models(tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and one model that is known."""
    file = ModelFile(
        name=NAME,
        url=f"{server.url}/elsewhere",
        size_bytes=len(WEIGHTS),
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        license="MIT",
    )
    monkeypatch.setattr(local_models, "MODEL_FILES", (file,))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "weft" / "models"


def test_a_model_is_fetched_checked_and_listed(shell: Shell, server: FileServer, models: Path) -> None:
    assert json.loads(shell("model", "get", "--list", "--json").out)[0]["path"] is None
    before = os.umask(0o277)
    try:
        fetched = shell("model", "get", "TINY")
    finally:
        os.umask(before)
    place = models / f"{NAME}.gguf"
    assert (fetched.code, place.read_bytes()) == (0, WEIGHTS)
    assert f"{NAME} is at {place}" in fetched.out
    assert f"weft chat --model {NAME}" in fetched.err
    assert (place.stat().st_mode & 0o777, models.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in models.iterdir()] == [place.name]
    assert shell("model", "get", "--list").out.split() == [NAME, "0", "MB", "MIT", "here"]
    again = json.loads(shell("model", "get", NAME, "--json").out)
    assert (again["path"], again["size_bytes"], again["license"]) == (str(place), len(WEIGHTS), "MIT")
    assert server.begun == [""]


def test_a_cut_connection_goes_on_and_so_does_the_next_run(shell: Shell, server: FileServer, models: Path) -> None:
    server.cuts = [30_000, 20_000, -len(WEIGHTS)]
    cut = shell("model", "get", NAME)
    assert cut.code == 8
    assert "50,000 of 102,400 bytes are here" in cut.err
    assert "run it again" in cut.err
    assert not (models / f"{NAME}.gguf").exists()
    assert (models / f"{NAME}.gguf.part").stat().st_mode & 0o777 == 0o600
    server.cuts = [0]
    assert shell("model", "get", NAME).code == 0
    assert server.begun == ["", "bytes=30000-", "bytes=50000-", "bytes=50000-"]
    assert (models / f"{NAME}.gguf").read_bytes() == WEIGHTS


def test_a_server_without_ranges_begins_anew(shell: Shell, server: FileServer, models: Path) -> None:
    server.knows_ranges = False
    models.mkdir(parents=True)
    (models / f"{NAME}.gguf.part").write_bytes(WEIGHTS[:1000])
    assert shell("model", "get", NAME).code == 0
    assert server.begun == ["bytes=1000-"]
    assert (models / f"{NAME}.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize("wrong", [WEIGHTS[:-1] + b"!", WEIGHTS + b"more"])
def test_wrong_bytes_are_never_put_in_place(shell: Shell, server: FileServer, models: Path, wrong: bytes) -> None:
    server.content = wrong
    refused = shell("model", "get", NAME)
    assert refused.code == 8
    assert "SHA-256 is another one" in refused.err or "sends more than" in refused.err
    assert [path.stat().st_size for path in models.iterdir()] in ([], [0])
    server.content = WEIGHTS
    assert shell("model", "get", NAME).code == 0


def test_a_server_that_refuses_is_told_of(shell: Shell, server: FileServer, models: Path) -> None:
    server.status = 404
    assert "404: it does not give" in shell("model", "get", NAME).err
    server.close()
    assert "nothing answers" in shell("model", "get", NAME).err
    assert "there are: tiny-instruct" in shell("model", "get", "gpt-17").err


def test_a_file_is_taken_without_a_network_and_checked_the_same(
    shell: Shell, server: FileServer, models: Path, tmp_path: Path
) -> None:
    brought = tmp_path / "brought.gguf"
    for content, words in ((b"GGUF", "has 4 bytes"), (WEIGHTS[::-1], "SHA-256 is another one")):
        brought.write_bytes(content)
        refused = shell("model", "get", NAME, "--from", str(brought))
        assert (refused.code, words in refused.err) == (5, True), refused.err
    assert "is not a file" in shell("model", "get", NAME, "--from", str(tmp_path)).err
    assert not (models / f"{NAME}.gguf").exists()
    brought.write_bytes(WEIGHTS)
    assert shell("model", "get", NAME, "--from", str(brought)).code == 0
    assert (models / f"{NAME}.gguf").read_bytes() == WEIGHTS == brought.read_bytes()
    assert server.begun == []


def test_one_process_fetches_at_a_time(shell: Shell, server: FileServer, models: Path) -> None:
    models.mkdir(parents=True)
    with (models / f"{NAME}.gguf.part").open("wb") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        assert "fetched by another process" in shell("model", "get", NAME).err
    assert server.begun == []


def test_the_internet_does_not_send_us_to_this_machine() -> None:
    file = MODEL_FILES[0]
    cdn = _next_url(file, file.url, "https://cdn.example.org/x?signed=1")
    assert cdn == "https://cdn.example.org/x?signed=1"
    for target in ("http://cdn.example.org/x", "https://127.0.0.1/x", "https://localhost/x", "https://10.0.0.7/x"):
        with pytest.raises(ConnectionForbidden, match="redirects to"):
            _next_url(file, file.url, target)


def test_every_known_model_is_pinned_at_a_revision_of_its_maker() -> None:
    makers = {"smollm2": "HuggingFaceTB", "qwen2.5": "Qwen"}
    for file in MODEL_FILES:
        parts = file.url.removeprefix("https://huggingface.co/").split("/")
        assert parts[0] == makers[file.name.split("-")[0]]
        assert (parts[2], len(parts[3]), len(file.sha256)) == ("resolve", 40, 64)
        assert find_model_file(file.name.removesuffix("-instruct").upper()) is file
    assert [file.size_bytes for file in MODEL_FILES] == sorted(file.size_bytes for file in MODEL_FILES)
    assert len({file.sha256 for file in MODEL_FILES}) == len(MODEL_FILES) == 4


@pytest.mark.slow("the embedded model answers twice")
def test_a_fetched_model_answers_in_a_conversation_and_as_a_program(
    shell: Shell, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = find_weights()
    file = replace(local_models.MODEL_FILES[0], size_bytes=weights.stat().st_size, sha256=SHA256)
    monkeypatch.setattr(local_models, "MODEL_FILES", (file,))
    monkeypatch.setattr("weft.surfaces.cli.chat.models.LONGEST_ANSWER", 8)
    shell("init")
    missing = shell("chat", "--model", NAME, stdin="What is the capital of France?")
    assert f"weft model get {NAME}" in missing.err
    assert shell("model", "get", NAME, "--from", str(weights)).code == 0
    answer = shell("chat", "--model", "tiny", "--json", stdin="What is the capital of France?")
    assert answer.code == 0, answer.err
    assert (json.loads(answer.out)["model"], json.loads(answer.out)["model_id"]) == (NAME, NAME)
    shell("provider", "create", "here", "--type", "local")
    shell("model", "create", "mine", "--backend", NAME, "--provider", "here", "--max-tokens", "4")
    assert NAME in shell("provider", "models", "here").out.split()
    asked = json.loads(shell("model", "invoke", "mine", "--message", "Hello", "--json").out)
    assert asked["result"]["provider"] == "here"
