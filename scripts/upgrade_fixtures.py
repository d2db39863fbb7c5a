"""Write ledgers of this version down as a promise: every later version opens them with the same digests.

Run it with the version whose ledgers are promised, once for each schema number, before the first release that has it:

    .venv/bin/python scripts/upgrade_fixtures.py

It makes tests/upgrades/schema-NNNN/ with one history, native and imported, in four forms: a SQLite file with its head
file, a dump of a PostgreSQL schema, a facts file and a bundle, and expected.json, which says what they hold. A folder
that is there already stays: what was promised is never written again.

Clock and randomness of the native history are fixed. Imports, the clone and the bundle are made by the `weft` command,
which has the machine's own. Everything lies in a folder with a neutral name meanwhile, and what names the machine in
the ledgers (its boot id, the server's folder) is replaced.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw
from msgspec import to_builtins
from msgspec.structs import asdict

sys.path.insert(0, str(Path(__file__).parents[1]))

import weft
from tests.exchange.fixtures.claude_code.lines import Lines, use
from tests.exchange.fixtures.claude_code.story import story
from tests.postgres import Server
from tests.upgrades import description
from tests.upgrades.description import SteppingClock, describe, shipped_schema_number

ROOT = Path(__file__).parents[1]
SAMPLES = sorted((ROOT / "docs" / "samples").glob("*.jsonl"))
FIXTURES = ROOT / "tests" / "exchange" / "fixtures"
PROJECT = Path("/tmp/project")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NO_MACHINE = "00000000-0000-4000-8000-000000000000"
START_MS = 1_793_534_400_000
CHART_LINES = 30_000
"""More than a megabyte: a content in parts."""
LONG_AGO_S = 1_700_000_000
USAGE = {"input_tokens": 40, "output_tokens": 12, "cached_input_tokens": 8}
READY = b"ready\n"
SEEDS = {"ledger": 1, "clone": 2, "writer": 3}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write ledgers of this version to tests/upgrades/schema-NNNN/.")
    parser.add_argument("--leave-turns-open", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--at", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.leave_turns_open is not None:
        return leave_turns_open(arguments.leave_turns_open, arguments.at)
    number = shipped_schema_number()
    target = description.FOLDER / f"schema-{number:04}"
    if target.exists():
        sys.exit(f"{target} exists: the ledgers of schema {number} are promised already")
    with neutral_folder():
        make_fixtures(target, number)
    files = sorted(target.iterdir())
    print(*(f"{file.stat().st_size:>9,}  {file.relative_to(ROOT)}" for file in files), sep="\n")


@contextmanager
def neutral_folder() -> Iterator[None]:
    """Makes PROJECT, and removes it afterwards; fails where it exists already."""
    PROJECT.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(PROJECT)


def make_fixtures(target: Path, number: int) -> None:
    server = Server()
    folder, other_folder = PROJECT / "sqlite", PROJECT / "postgres"
    sqlite = make_ledger(str(folder / "ledger.db"), folder)
    postgres = make_ledger(server.address(description.SCHEMA), other_folder)
    dump = server.run(
        *("pg_dump", "-h", str(server.folder), "-U", "weft", "-n", description.SCHEMA),
        *("--no-owner", "--no-privileges", "postgres"),
    )
    target.mkdir()
    write_compressed(target / description.LEDGER, (folder / "ledger.db").read_bytes())
    shutil.copyfile(folder / description.HEAD, target / description.HEAD)
    write_compressed(target / description.DUMP, neutral_dump(dump, server.folder).encode())
    write_compressed(target / description.FACTS, (folder / "facts.jsonl").read_bytes())
    shutil.copyfile(folder / description.BUNDLE, target / description.BUNDLE)
    expected = {"schema": number, "weft": weft.__version__, "sqlite": sqlite, "postgres": postgres}
    (target / description.EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


def write_compressed(file: Path, data: bytes) -> None:
    """Leases name their owner by the machine's boot id; another text of the same length is put in its place."""
    if BOOT_ID.exists():
        data = data.replace(BOOT_ID.read_bytes().strip(), NO_MACHINE.encode())
    file.write_bytes(gzip.compress(data, mtime=0))


def neutral_dump(dump: str, folder: Path) -> str:
    """Without the server's folder, and without the random words that newer versions of pg_dump put in for psql."""
    lines = dump.replace(str(folder), "/run/postgresql").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


def make_ledger(address: str, folder: Path) -> dict[str, Any]:
    """Make the ledger at this address, and its other forms in this folder; returns what it holds. The bundle is made
    before turns are left open: the next one to open the ledger would close them."""
    folder.mkdir()
    clock = SteppingClock(START_MS)
    with weft.open(address, clock=clock, random_bytes=Random(SEEDS["ledger"]).randbytes) as ledger:
        import_sources(address, folder / "sources")
        record_turns(ledger)
        ledger.upkeep.catch_up()
        move_sessions(ledger)
        make_programs(ledger)
        let_a_clone_diverge(ledger, address, str(folder / "clone.db"), clock)
        ledger.upkeep.pack("cold")
        ledger.erasure.erase("secret~1", reason="it should not have been said")
        import_open_session(address, folder / "sources")
        threads = ["main", "side", *(str(session.head) for session in ledger.sessions() if session.origin != "weft")]
        run_weft(address, "bundle", "create", *threads, "-o", str(folder / description.BUNDLE))
        bundled = sorted({turn.id for name in threads for turn in ledger.thread(name).turns})
        kill_writer(address, clock)
        retried = ledger.record_turn(**description.RETRIED_TURN)
        receipt = ask(ledger, "main", "The last turn?", "The last one.").receipt
        ledger.upkeep.export_facts(folder / "facts.jsonl")
        return {
            "clock": clock.now_ms(),
            "receipt": asdict(receipt),
            "retried": to_builtins(retried),
            "provisional": len(ledger.imports.provisional()),
            "bundled": bundled,
            "described": describe(ledger),
        }


def run_weft(address: str, *arguments: str) -> None:
    """The command line, in the neutral folder, with a home there."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(PROJECT), "LANG": "C.UTF-8"}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # this very version
    command = [str(Path(sys.executable).with_name("weft")), "--ledger", address, "--quiet", *arguments]
    subprocess.run(command, cwd=PROJECT, env=environment, check=True, stdout=subprocess.DEVNULL)


def write_sources(folder: Path) -> None:
    """Sessions of three origins, left long ago."""
    folder.mkdir()
    for file in (*SAMPLES, FIXTURES / "codex" / "generation_a.json", FIXTURES / "codex" / "generation_b.jsonl"):
        shutil.copyfile(file, folder / file.name)
    (folder / "story.jsonl").write_bytes(story().bytes())
    connection = apsw.Connection(str(folder / "logs.db"))
    connection.execute((FIXTURES / "llm" / "logs.sql").read_text())
    connection.close()
    for file in folder.iterdir():
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))


def import_sources(address: str, folder: Path) -> None:
    """One sample comes twice, cut inside its last turn and whole: that turn's second version supersedes the first."""
    write_sources(folder)
    run_weft(address, "trust")
    sample = folder / SAMPLES[0].name
    whole = sample.read_bytes()
    for data, sources in ((without_last_line(whole), sample), (whole, folder)):
        sample.write_bytes(data)
        os.utime(sample, (LONG_AGO_S, LONG_AGO_S))
        run_weft(address, "import", str(sources))


def import_open_session(address: str, folder: Path) -> None:
    """A session that another tool is still writing: its last turn is provisional."""
    lines = Lines("0fe4").user("p1", "Is this turn over?").answer("a1", "It is.").end("e1")
    lines.user("p2", "And this one?").answer("a2", use("c1", "Bash", command="date"))
    (folder / "open.jsonl").write_bytes(lines.bytes())
    run_weft(address, "import", str(folder / "open.jsonl"))


def without_last_line(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def record_turns(ledger: weft.Ledger) -> None:
    """Turns of every ending, tool calls, forks, a compaction and a result that came late."""
    ask(ledger, "main", "Who keeps the lighthouse?", "A keeper, at night.")
    turn = ledger.begin_turn(session="main", persona="ann", toolset="harbour", tools_available=["look"])
    turn.message("Answer briefly.", role="system")
    turn.message("Is the lamp on?")
    turn.request("model-a", provider="provider-a", params={"temperature": 0.5}, tools_spec=[{"name": "look"}])
    turn.response("I will look.", usage=USAGE)
    turn.tool_result(turn.tool_call("look", {"at": "lamp"}, id="call-1", server="harbour"), {"lamp": "on"})
    turn.tool_result(turn.tool_call("look", {"at": "fog"}, id="call-2"), error={"message": "no sight", "code": "E1"})
    turn.request("model-a", provider="provider-a")
    turn.response("The lamp is on.\n\n```python\nlamp = True\n```", usage=USAGE)
    turn.finish()
    ask(ledger, "main", "Anything else?", "Ships pass the lighthouse.", effort="high")
    fail_and_interrupt(ledger)
    ledger.fork("main~1", label="side")
    ask(ledger, "side", "What if it were off?", "Then the ships would wait.")
    ledger.fork(ledger.events("main~1")[-3].id, label="inside")
    ask(ledger, "inside", "From the middle of a turn?", "Yes.")
    ledger.compactions.record(session="main", summary="A keeper keeps the lighthouse; the lamp is on.", model="model-a")
    ask(ledger, "main", "After the summary?", "Still on.")
    for number in range(3):
        ask(ledger, "cold", f"Cold question {number}", f"Cold answer {number}: " + "the sea is calm. " * 20)
        ask(ledger, "secret", f"What is the word, the {number}th?", f"The word is rosebud-{number}.")
    chart = ledger.put_content(b"a chart of the coast, drawn line by line\n" * CHART_LINES)
    ledger.record_turn(session="chart", query=chart, response="Got it.")
    ledger.record_turn(query="Without a session", response="That works, too.", model="model-b", usage=USAGE)


def ask(ledger: weft.Ledger, session: str, query: str, response: str, effort: str | None = None) -> weft.RecordedTurn:
    thinking = None if effort is None else {"effort": effort}
    return ledger.record_turn(
        session=session, query=query, response=response, model="model-a", usage=USAGE, thinking_config=thinking
    )


def fail_and_interrupt(ledger: weft.Ledger) -> None:
    ledger.record_turn(session="main", query="Break, please.", error={"message": "overloaded", "code": "529"})
    with ledger.begin_turn(session="main") as turn:
        turn.message("Look once more, slowly.")
        turn.tool_call("look", {"at": "horizon"}, id="call-3")
        turn.interrupt()
    ask(ledger, "main", "Meanwhile?", "Nothing yet.")
    ledger.record_late_result(turn.id, "call-3", {"horizon": "a sail"})


def move_sessions(ledger: weft.Ledger) -> None:
    """A reflog with every kind of move, aliases, and sessions that were renamed, archived, deleted and reset."""
    ledger.labels.add_alias("lead", "main")
    ledger.labels.add_alias("second", "side")
    ask(ledger, "moved", "One?", "One.")
    ask(ledger, "moved", "Two?", "Two.")
    ledger.move_head("moved", new=ledger.resolve("moved~1"), reason="back to one")
    ledger.heads.restore("moved")
    ledger.heads.reset("moved", reason="anew")
    ask(ledger, "moved", "A new root?", "A new root.")
    ledger.labels.rename("moved", "harbour")
    ledger.create_session("empty", persona="ann", task_description="Not begun yet")
    for label, put_away in (("old", ledger.labels.archive), ("gone", ledger.labels.delete)):
        ask(ledger, label, f"Is {label} over?", "It is.")
        put_away(label, reason="it is over")


def make_programs(ledger: weft.Ledger) -> None:
    """All eight kinds, with tags, retry keys, versions, checks, requests and a checkpoint."""
    programs = weft.Programs(ledger)
    programs.create("provider", "gateway", {"providerType": "openai", "apiKey": "${GATEWAY_KEY}"})
    programs.create("model", "quick", {"name": "Quick", "modelId": "model-a", "provider": "@(gateway)"})
    programs.change("quick", {"temperature": 0.1}, reason="too lively", key="calm-it-down")
    kind, name, config = description.RETRIED
    programs.create(kind, name, config, tagged=["promised"], key=description.RETRY_KEY)
    programs.create("agent", description.HELD_AGENT, {"systemPrompt": "Keep the light.", "tools": ["@(lamp)"]})
    criteria = [{"type": "contains", "text": "lit"}]
    programs.create("task", "light-up", {"title": "Light the lamp", "spec": {"successCriteria": criteria}})
    programs.create("task", "put-out", {"title": "Put it out", "dependencies": ["light-up"]})
    programs.assign(description.HELD_AGENT, "light-up", key="give-it-the-lamp")
    programs.step_agent(description.HELD_AGENT, "think")
    programs.save_checkpoint(description.HELD_AGENT, {"notes": ["wick trimmed"]})
    programs.start_task("light-up")
    programs.complete_task("light-up", answer="it is lit")
    programs.create("human", "harbourmaster", {"name": "Ann", "permissions": ["approve", "assign"]})
    request = programs.notify("harbourmaster", "May it go out?", asks=True, program="put-out")
    programs.acting_as("harbourmaster").approve(request.id, reason="the day has come")
    programs.create("information", "tides", {"infoType": "fact", "content": {"high": "06:12"}}, tagged=["promised"])
    programs.create_session("watch", model="quick")
    ask(ledger, "watch", "Who watches?", "The keeper.")
    programs.step_session("watch", "pause")
    programs.create("code", "rusty", {"language": "typescript", "source": "export default () => 0"})
    programs.delete("rusty")
    programs.add_tags(ledger.resolve("main"), "promised", "turn")


def let_a_clone_diverge(ledger: weft.Ledger, address: str, clone: str, clock: SteppingClock) -> None:
    """A session that two ledgers moved: the other one's branch comes back with a pull."""
    ask(ledger, "shared", "Who goes first?", "Both of us.")
    run_weft(address, "clone", address, clone)
    with weft.open(clone, clock=clock, random_bytes=Random(SEEDS["clone"]).randbytes) as other:
        ask(other, "shared", "Here, it is the clone.", "So it is.")
    ask(ledger, "shared", "Here, it is the first.", "So it is, too.")
    run_weft(address, "remote", "add", "clone", clone)
    run_weft(address, "pull", clone)


def kill_writer(address: str, clock: SteppingClock) -> None:
    """A process that begins two turns, one in a session and one without, holds an agent, and is killed before it ends
    them."""
    command = [sys.executable, __file__, "--leave-turns-open", address, "--at", str(clock.now_ms())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == READY
        writer.kill()


def leave_turns_open(address: str, at_ms: int) -> None:
    ledger = weft.open(address, clock=SteppingClock(at_ms), random_bytes=Random(SEEDS["writer"]).randbytes)
    ask(ledger, "halted", "Ready?", "Ready.")
    turn = ledger.begin_turn(session="halted")
    turn.message("Who turned the lamp off?")
    turn.tool_call("look", {"at": "lamp"}, id="call-9")
    ledger.begin_turn().message("A turn without a session")
    weft.Programs(ledger).hold_agent(description.HELD_AGENT)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
