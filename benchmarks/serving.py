"""A server with a thousand open streams, and what it answers meanwhile.

Fifty sessions answer at once, two pieces a second each; a thousand clients follow them over HTTP, and others read 200
times a second. The server, the model that speaks, those who follow and those who read are processes of their own, so
that the CPU of each is told apart. The reads are the same without streams, with the sessions answering and without.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

SESSIONS, PIECES_A_SECOND = 50, 2.0
STREAMS, READS_A_SECOND, SECONDS = 1_000, 200, 20.0
READERS = 16
"""Connections that reads share."""
TURNS = 200
"""That the ledger has before."""


@dataclass(frozen=True, slots=True)
class ServedReads:
    """Reads in one situation. Shares are of one core."""

    reads: int
    p50_ms: float
    p99_ms: float
    server_share: float
    model_share: float
    followers_share: float
    readers_share: float
    server_mib: float


@dataclass(frozen=True, slots=True)
class ServedStreams:
    alone: ServedReads
    answering: ServedReads
    """While the sessions answer, and nobody follows."""
    followed: ServedReads
    streams: int
    pieces: int
    """That all who follow were told; each of them every piece once."""
    missed: int
    delay_p50_ms: float
    delay_p99_ms: float
    """From the model's saying a piece to a follower's having it."""
    mib_before: float
    mib_after: float
    """Of the server, while the streams were open: when the answers began, and when they ended."""

    @property
    def ratio(self) -> float:
        """Of the p99 of reads with streams and without."""
        return self.followed.p99_ms / self.alone.p99_ms


def measure_serving(directory: Path, streams: int = STREAMS, seconds: float = SECONDS) -> ServedStreams:
    with _model(seconds) as model, _server(directory, model.url) as server:
        alone, _ = _measured(server, model, 0, seconds, is_answering=False)
        answering, _ = _measured(server, model, 0, seconds, is_answering=True)
        followed, told = _measured(server, model, streams, seconds, is_answering=True)
    assert told is not None
    delays = quantiles(told["delays"], n=100)
    return ServedStreams(
        alone=alone,
        answering=answering,
        followed=followed,
        streams=streams,
        pieces=len(told["delays"]),
        missed=told["missed"],
        delay_p50_ms=delays[49] * 1000,
        delay_p99_ms=delays[98] * 1000,
        mib_before=told["mib_before"],
        mib_after=told["mib_after"],
    )


class _Running:
    """A process and how it is reached."""

    def __init__(self, process: subprocess.Popen[str], url: str, headers: dict[str, str] | None = None) -> None:
        self.process, self.url, self.headers = process, url, headers or {}

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


@contextmanager
def _process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the server tells of each request there
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _model(seconds: float) -> Iterator[_Running]:
    with _process("-m", "benchmarks.serving", "model", str(round(seconds * PIECES_A_SECOND))) as process:
        assert process.stdout is not None
        yield _Running(process, process.stdout.readline().strip())


@contextmanager
def _server(directory: Path, model_url: str) -> Iterator[_Running]:
    environment = {"HOME": str(directory), "WEFT_LEDGER": str(directory / "served.db"), "BENCH_KEY": "key"}

    def weft(*arguments: str) -> str:
        command = [sys.executable, "-m", "weft.surfaces.cli", *arguments]
        ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        return ran.stdout

    weft("init", environment["WEFT_LEDGER"])
    weft("provider", "create", "there", "--type", "openai-compatible", "--base-url", f"{model_url}/v1",
         "--key-env", "BENCH_KEY")  # fmt: skip
    weft("model", "create", "fast", "--backend", "m-1", "--provider", "there")
    _fill(Path(environment["WEFT_LEDGER"]))
    token = weft("token", "create", "--allow", "*", "--expires", "8h").split()[-1]
    with _process("-m", "weft.surfaces.cli", "--json", "serve", "--port", "0", **environment) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield _Running(process, url, {"authorization": f"Bearer {token}"})


def _fill(path: Path) -> None:
    import weft
    from weft.programs import Programs

    with weft.open(path) as ledger:
        for number in range(SESSIONS):
            Programs(ledger).create_session(f"session-{number}", model="fast")
        for number in range(TURNS):
            ledger.record_turn(session=f"read-{number % 20}", query=[f"question {number}"], response="answer " * 50)


def _measured(
    server: _Running, model: _Running, streams: int, seconds: float, *, is_answering: bool
) -> tuple[ServedReads, dict[str, Any] | None]:
    where = json.dumps({"url": server.url, "headers": server.headers})
    follower = ("-m", "benchmarks.serving", "follow", where, str(streams), str(seconds))
    reader = ("-m", "benchmarks.serving", "read", where, str(seconds))
    with _process(*follower) as following, _process(*reader) as reading:
        followers, readers = _Running(following, ""), _Running(reading, "")
        for one in (following, reading):
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        if is_answering:
            with ThreadPoolExecutor(SESSIONS) as posting:
                list(posting.map(lambda number: _post(server, f"session-{number}"), range(SESSIONS)))
        assert reading.stdin is not None
        assert reading.stdout is not None
        parts = (server, model, followers, readers)
        before, started, mib_before = [part.cpu_seconds() for part in parts], time.monotonic(), server.mib()
        print("go", file=reading.stdin, flush=True)
        latencies = json.loads(reading.stdout.readline())
        wall, mib_after = time.monotonic() - started, server.mib()
        shares = [(part.cpu_seconds() - cpu) / wall for part, cpu in zip(parts, before, strict=True)]
        assert following.stdout is not None
        told = json.loads(following.stdout.readline()) if streams else None
        while is_answering and _get(server, "/api/v1/inbox?limit=1")["items"]:  # until the answers have ended
            time.sleep(0.5)
    cuts = quantiles(latencies, n=100)
    server_share, model_share, followers_share, readers_share = shares
    reads = ServedReads(
        reads=len(latencies),
        p50_ms=cuts[49] * 1000,
        p99_ms=cuts[98] * 1000,
        server_share=server_share,
        model_share=model_share,
        followers_share=followers_share,
        readers_share=readers_share,
        server_mib=mib_after,
    )
    return reads, None if told is None else {**told, "mib_before": mib_before, "mib_after": mib_after}


def _post(server: _Running, session: str) -> None:
    import httpx2

    asked = {"text": "What time is it?", "session": session}
    httpx2.post(f"{server.url}/api/v1/messages", json=asked, headers=server.headers, timeout=60).raise_for_status()


def _get(server: _Running, path: str) -> Any:
    import httpx2

    return httpx2.get(server.url + path, headers=server.headers, timeout=60).raise_for_status().json()


# --- The processes.


async def _speak(pieces: int) -> None:
    """A model that says the time, twice a second; no two sessions at the same moment."""
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                answered += 1
                await asyncio.sleep(answered % SESSIONS / SESSIONS / PIECES_A_SECOND)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                for _ in range(pieces):
                    writer.write(_chunk({"content": f"{time.time()} "}))
                    await writer.drain()
                    await asyncio.sleep(1 / PIECES_A_SECOND)
                writer.write(_chunk({}, "stop") + b"data: [DONE]\n\n")
                await writer.drain()
                return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]}
    return f"data: {json.dumps(body)}\n\n".encode()


def _length(head: bytes) -> int:
    """Of the body behind these headers."""
    lines = head.lower().split(b"\r\n")
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))


def _request(where: dict[str, Any], path: str, accept: str) -> bytes:
    host = where["url"].partition("//")[2]
    headers = {"host": host, "accept": accept, **where["headers"]}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def _follow(where: dict[str, Any], streams: int, seconds: float) -> None:
    """Until every answer has ended."""
    host, _, port = where["url"].partition("//")[2].partition(":")
    delays: list[float] = []
    counts = [0] * streams
    opened = 0
    is_open = asyncio.Event()

    async def one(number: int) -> None:
        nonlocal opened
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_request(where, f"/api/v1/sessions/session-{number % SESSIONS}/events", "text/event-stream"))
        await reader.readuntil(b"retry:")
        opened += 1
        if opened == streams:
            is_open.set()
        while True:
            line = await reader.readline()
            if line.startswith(b"data:") and b'"type":"text_added"' in line:
                now = time.time()
                times = json.loads(line[5:])["text"].split()
                delays.extend(now - float(sent_at) for sent_at in times)
                counts[number] += len(times)
            elif line == b"event: turn_ended\n":
                return
            elif not line:
                raise ConnectionError("a stream ended")

    tasks = [asyncio.ensure_future(one(number)) for number in range(streams)]
    if streams:
        waiting = asyncio.ensure_future(is_open.wait())
        await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        assert is_open.is_set(), "a stream was not opened"
    print("ready", flush=True)
    await asyncio.gather(*tasks)
    pieces = round(seconds * PIECES_A_SECOND)
    missed = sum(abs(pieces - count) for count in counts)
    if streams:
        print(json.dumps({"delays": delays, "missed": missed}), flush=True)


async def _read(where: dict[str, Any], seconds: float) -> None:
    """At fixed times, whether the answer before has come or not; the latency counts from then."""
    host, _, port = where["url"].partition("//")[2].partition(":")
    request = _request(where, "/api/v1/sessions?limit=20", "application/json")
    latencies: list[float] = []
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def one(due: float) -> None:
        reader, writer = await free.get()
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):  # nothing was asked on it for a while
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(_length(head))
        latencies.append(asyncio.get_running_loop().time() - due)
        free.put_nowait((reader, writer))

    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for _ in range(READERS):
        free.put_nowait(await asyncio.open_connection(host, int(port)))
    start, tasks = asyncio.get_running_loop().time(), []
    for number in range(round(seconds * READS_A_SECOND)):
        due = start + number / READS_A_SECOND
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        tasks.append(asyncio.ensure_future(one(due)))
    await asyncio.gather(*tasks)
    print(json.dumps(latencies), flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["model", pieces]:
            asyncio.run(_speak(int(pieces)))
        case ["follow", where, streams, seconds]:
            asyncio.run(_follow(json.loads(where), int(streams), float(seconds)))
        case ["read", where, seconds]:
            asyncio.run(_read(json.loads(where), float(seconds)))
        case _:
            sizes = (int(arguments[0]), float(arguments[1])) if arguments else (STREAMS, SECONDS)
            with TemporaryDirectory() as folder:
                found = measure_serving(Path(folder), *sizes)
            print(json.dumps({**asdict(found), "ratio": found.ratio}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
