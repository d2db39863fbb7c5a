"""What Weft does, in a minute: a small ledger, shown through the real command. `python -m weft.surfaces.demo`

An agent fixes a parser; a person goes back and tries another way; the past is compacted; a provider fails and the turn
is tried again. The ledger stays where it is said to be, to play with. Then you can talk: at a terminal it ends in
`weft chat`, elsewhere in one exchange with the embedded model.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.clock import FixedClock, ms_from_iso
from weft.kernel.typed_names import shell_word

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

MODEL: dict[str, Any] = {"model": "sonnet-large", "provider": "example"}
STARTED, PAUSE = "2026-03-02T13:05:00.000Z", 7 * 60 * 1000
LAST_QUERY = "Add a line to the changelog."
QUESTION = "What is the capital of France?"
SYSTEM = "You are a careful coding agent. Run the tests before you say that something works."
TRACEBACK = """\
FAILED tests/test_parser.py::test_dates - ValueError: unconverted data remains: +02:00
    def parse(text):
>       return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")
E       ValueError: unconverted data remains: +02:00

tests/test_parser.py:12: ValueError
1 failed, 41 passed in 0.84s"""
SUMMARY = """\
The parser now reads dates with datetime.fromisoformat, so offsets such as +02:00 are kept.
All 42 tests pass. Still open: a line in the changelog, and dates without a year."""


def tool(name: str, result: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"call-{name}", "name": name, "arguments": arguments, "result": result}


def tokens(read: int, written: int) -> dict[str, int]:
    return {"input_tokens": read, "output_tokens": written}


def fill(ledger: Ledger, clock: FixedClock) -> None:
    """The story, in the order in which it happened."""
    for step in (_find_the_bug, _fork, _fix_it, _try_another_way, _fail, _try_again):
        step(ledger)
        clock.tick(PAUSE)


def _find_the_bug(ledger: Ledger) -> None:
    ledger.record_turn(
        session="main",
        system=SYSTEM,
        query="test_dates fails since this morning. What is wrong?",
        tool_calls=[tool("run_tests", TRACEBACK, path="tests/test_parser.py")],
        response="The dates now carry an offset (+02:00), and strptime's pattern has no place for one.",
        usage=tokens(1840, 96),
        **MODEL,
    )


def _fork(ledger: Ledger) -> None:
    ledger.fork("main", label="by-hand")


def _fix_it(ledger: Ledger) -> None:
    ledger.record_turn(
        session="main",
        query="Fix it, please.",
        tool_calls=[
            tool("edit_file", "1 line changed", path="src/parser.py", old="strptime(text, ", new="fromisoformat(text"),
            tool("run_tests", "42 passed in 0.79s"),
        ],
        response=[{"content": [
            {"type": "reasoning", "text": "fromisoformat knows offsets.\nNo new dependency.\nThe pattern can go."},
            {"type": "text", "text": "Done: fromisoformat reads dates with and without an offset. 42 tests pass."},
        ]}],
        usage=tokens(2210, 148),
        **MODEL,
    )  # fmt: skip
    ledger.compactions.record(session="main", summary=SUMMARY, model="sonnet-small", trigger="manual")


def _try_another_way(ledger: Ledger) -> None:
    ledger.record_turn(
        session="by-hand",
        query="Could we keep strptime and cut the offset off instead?",
        response="Yes, but times from two zones would then compare wrongly. I would not.",
        usage=tokens(2015, 61),
        **MODEL,
    )


def _fail(ledger: Ledger) -> None:
    fault = {"message": "529 overloaded, try again later", "code": "overloaded"}
    ledger.record_turn(session="main", query=LAST_QUERY, error=fault, **MODEL)


def _try_again(ledger: Ledger) -> None:
    ledger.record_turn(
        session="main",
        query=LAST_QUERY,
        tool_calls=[tool("edit_file", "1 line added", path="CHANGELOG.md", line="- Dates may carry an offset.")],
        response='Added "Dates may carry an offset." under Fixed.',
        usage=tokens(410, 37),
        **MODEL,
    )


def run(path: Path, *arguments: str) -> None:
    """One command, shown as it would be typed and answered by the code that answers it there."""
    from weft.surfaces.cli.main import run as run_command

    click.secho(f"$ weft {' '.join(arguments)}", bold=True)
    code = run_command(["--ledger", str(path), "--no-pager", *arguments])
    if code != 0:
        raise SystemExit(code)
    click.echo()


def talk(path: Path) -> int:
    """A conversation, where somebody is there to have it; else one exchange, without anybody's key."""
    from weft.surfaces.cli.chat.models import install, missing_packages
    from weft.surfaces.cli.main import run as run_command

    if missing := missing_packages(is_embedded=True):
        click.echo(f"\nTo talk with the embedded model, {install(missing)}.")
        return 0
    if sys.stdin.isatty() and sys.stdout.isatty():
        click.echo("\nNow talk:\n")
        return run_command(["--ledger", str(path), "chat"])
    click.echo("\nThe embedded model is a tiny one for trying things out, not for work. It can answer this:\n")
    click.secho(f"$ echo {shell_word(QUESTION)} | weft chat --model local", bold=True)
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(QUESTION.encode()))
    try:
        return run_command(["--ledger", str(path), "chat", "--model", "local"])
    finally:
        sys.stdin = before


def main() -> int:
    import weft
    from weft.surfaces.cli.user_files import trust_store

    path = Path(tempfile.mkdtemp(prefix="weft-demo-")) / "ledger.db"
    clock = FixedClock(ms_from_iso(STARTED))
    with weft.open(path, clock=clock, trust=trust_store()) as ledger:
        fill(ledger, clock)
    click.echo("A coding agent's afternoon: a bug, a fix, another way that was tried, a provider that failed.\n")
    run(path, "log", "--graph", "--oneline")
    run(path, "show", "main~2")
    run(path, "diff", "main", "by-hand")
    run(path, "verify")
    click.echo("The ledger is kept. Go on with it:\n")
    click.echo(f"  export WEFT_LEDGER={shell_word(str(path))}")
    for words in ("log --graph", "tree main", "context", "fork main~2 third-way", "reflog main", "help revisions"):
        click.echo(f"  {program()} {words}")
    return talk(path)


def program() -> str:
    """How to call `weft` from here: by its name, or by its path where the shell would not find it."""
    beside = Path(sys.executable).with_name("weft")
    if shutil.which("weft") or not beside.exists():
        return "weft"
    here = Path.cwd()
    return shell_word(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))


if __name__ == "__main__":
    sys.exit(main())
