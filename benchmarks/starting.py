"""How long a message takes from the start of a command to its end: `weft send` and the command `llm`, against one small
server that answers at once. Commands take turns, so that a slow moment hurts all of them alike.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chat_server import running_server
from benchmarks.measure import Figure, NotMeasured, Run, attempt, interleave, say
from benchmarks.plan import Sizes

IDLE, HELP, LOG, LLM, SEND = "python -c pass", "weft --help", "weft log", "llm", "weft send"
SERVED_SEND = "weft send beside a broker"
MODEL = "benchmark-model"
SESSION = "main"
MESSAGE = "What is two and three?"
READY_SECONDS = 30


def measure_starts(sizes: Sizes, directory: Path) -> dict[str, Figure | NotMeasured]:
    """Each command in a folder with a ledger of some turns. Those beside a broker have a ledger of their own."""
    say("starts of commands")
    place = directory / "starts"
    with running_server() as url:
        alone, served = (_folder(place / name, url) for name in ("alone", "served"))
        with _broker(served):
            return _measured(sizes, alone, served, url)


def _measured(sizes: Sizes, alone: Path, served: Path, url: str) -> dict[str, Figure | NotMeasured]:
    weft, llm = _program("weft"), _program("llm")
    send = [weft, "send", "--session", SESSION, MESSAGE]
    cases = {
        IDLE: _command([sys.executable, "-c", "pass"], alone),
        HELP: _command([weft, "--help"], alone),
        LOG: _command([weft, "log", "-n", "5"], alone),
        LLM: _command([llm, "-m", MODEL, MESSAGE], alone, _llm_settings(alone, url)),
        SEND: _command(send, alone),
        SERVED_SEND: _command(send, served),
    }
    for case in cases.values():
        attempt(case)  # the first start warms the caches
    return interleave(cases, sizes.start_rounds)


def _program(name: str) -> str:
    """A command of the environment that measures."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RuntimeError(f"the command {name} is not installed")
    return found


def _environment(folder: Path) -> dict[str, str]:
    """A person of their own: nothing of whoever measures is read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "LLM_", "XDG_"))}
    return {**kept, "HOME": str(folder), "USER": "benchmark", "PAGER": "cat"}


def _folder(folder: Path, url: str) -> Path:
    """A ledger with a model at this server, and a few turns."""
    folder.mkdir(parents=True)
    for words in (
        "init",
        f"provider create there --type openai-compatible --base-url {url}",
        f"model create {MODEL} --provider there --backend {MODEL}",
        f"session create {SESSION} --model {MODEL}",
    ):
        _run([_program("weft"), *words.split()], folder, _environment(folder))
    for _ in range(3):
        _run([_program("weft"), "send", "--session", SESSION, MESSAGE], folder, _environment(folder))
    return folder


def _llm_settings(folder: Path, url: str) -> dict[str, str]:
    """The same server as a model of the command `llm`, which loads no plugins."""
    settings = folder / "llm"
    settings.mkdir()
    (settings / "extra-openai-models.yaml").write_text(
        f"- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: {url}\n"
    )
    return {"LLM_USER_PATH": str(settings), "LLM_LOAD_PLUGINS": "", "OPENAI_API_KEY": "none"}


def _command(words: list[str], folder: Path, more: dict[str, str] | None = None) -> Callable[[], Run]:
    environment = {**_environment(folder), **(more or {})}

    def run() -> Run:
        before, started = os.times(), time.perf_counter()
        _run(words, folder, environment)
        seconds, after = time.perf_counter() - started, os.times()
        cpu = sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system"))
        return Run((seconds,), cpu)

    return run


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed without a word"])[-1])


@contextmanager
def _broker(folder: Path) -> Iterator[None]:
    """A broker that runs meanwhile."""
    process = subprocess.Popen(
        [_program("weft"), "broker", "--json"],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        if '"ready":true' not in process.stdout.readline():
            raise RuntimeError("the broker did not start")
        yield
    finally:
        process.terminate()
        process.wait(READY_SECONDS)
