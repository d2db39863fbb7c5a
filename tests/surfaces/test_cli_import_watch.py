"""`weft import --watch`, with a real writer and real notices."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import weft as library
from tests.surfaces.forking import Forked
from tests.surfaces.shell import Shell, on_terminal, running
from tests.surfaces.test_cli_import import SESSION, line
from weft.kernel.clock import SystemClock, iso_from_ms

LONG_AGO = 1_000_000_000
WRITER = """
import random, sys, time
from pathlib import Path
path, seed = Path(sys.argv[1]), sys.argv[2]
chance, data = random.Random(seed), sys.stdin.buffer.read()
path.parent.mkdir(parents=True, exist_ok=True)
while data:
    size = chance.randint(1, 400)
    with path.open("ab") as file:
        file.write(data[:size])
    data = data[size:]
    time.sleep(chance.random() / 100)
"""


def turn(number: int) -> str:
    asked, answered, ended = f"u{number}", f"a{number}", f"e{number}"
    return (
        line(asked, f"e{number - 1}" if number else None, "user", f"question {number}")
        + line(answered, asked, "assistant", [{"type": "text", "text": f"answer {number}"}])
        + line(ended, answered, "system", "", subtype="turn_duration", durationMs=5)
    )


@pytest.fixture
def home(folder: Path) -> Path:
    return folder.parent / "home"


@pytest.fixture
def session(home: Path) -> Path:
    path = home / ".claude" / "projects" / "-home-dev-shop" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    return path


class Watch:
    """A watch in a process of its own, with what it told."""

    def __init__(self, process: "Forked") -> None:
        self._process = process
        self.told: list[dict[str, Any]] = []

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Read on until something of this kind is told; a watch that ends instead is a failure."""
        assert self._process.stdout is not None
        for told in self._process.stdout:
            self.told.append(json.loads(told))
            if self.told[-1]["type"] == kind and fields.items() <= self.told[-1].items():
                return self.told[-1]
        assert self._process.stderr is not None
        raise AssertionError(f"no {kind} was told: {self.told} {self._process.stderr.read()!r}")

    def turns(self, count: int) -> None:
        """Until so many turns have come in all."""
        while sum(told["turns"] for told in self.told if told["type"] == "imported") < count:
            self.until("imported")

    def end(self, how: signal.Signals = signal.SIGINT) -> tuple[int, dict[str, Any]]:
        self._process.send_signal(how)
        stopped = self.until("stopped") if how != signal.SIGKILL else {}
        return self._process.wait(300), stopped


@contextmanager
def watching(folder: Path, *arguments: str) -> Iterator[Watch]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(folder, "import", "--watch", "--json", *arguments, **pipes) as process:
        yield Watch(process)


def write(path: Path, data: str, seed: int) -> None:
    """By another process, piece by piece."""
    subprocess.run([sys.executable, "-c", WRITER, str(path), str(seed)], input=data.encode(), check=True, timeout=300)


def test_a_live_session_is_followed_and_ctrl_c_ends_it_cleanly(weft: Shell, session: Path, folder: Path) -> None:
    with watching(folder) as watch:
        assert watch.until("watching")["files"] == 0
        write(session, turn(0) + turn(1), seed=1)
        watch.turns(2)
        code, stopped = watch.end()
    assert code == 0
    assert (stopped["files"], stopped["sessions"], stopped["turns"], stopped["problems"]) == (1, 1, 2, 0)
    assert [each["depth"] for each in weft.json("sessions")] == [2]
    assert weft("verify").code == 0


def test_the_usual_places_are_followed_though_they_come_later(weft: Shell, home: Path, folder: Path) -> None:
    with watching(folder) as watch:
        watch.until("watching")
        path = home / ".claude" / "projects" / "-home-dev-new" / f"{SESSION}.jsonl"
        write(path, turn(0), seed=2)
        watch.turns(1)
        assert watch.end(signal.SIGTERM)[0] == 0


def test_a_killed_watch_is_started_again_and_goes_on(weft: Shell, session: Path, folder: Path) -> None:
    with watching(folder) as watch:
        watch.until("watching")
        write(session, turn(0), seed=3)
        watch.turns(1)
        watch.end(signal.SIGKILL)
    write(session, turn(1), seed=4)
    with watching(folder) as watch:
        watch.until("watching")
        assert sum(told["turns"] for told in watch.told if told["type"] == "imported") == 1
        watch.end()
    assert [each["depth"] for each in weft.json("sessions")] == [2]


def test_two_watches_at_once_end_as_a_cold_import(weft: Shell, session: Path, folder: Path, tmp_path: Path) -> None:
    with watching(folder) as one, watching(folder) as two:
        for watch in (one, two):
            watch.until("watching")
        write(session, turn(0) + turn(1) + turn(2), seed=5)
        another = session.with_name("0a1b2c3d-2222-4222-8222-000000000002.jsonl")
        write(another, (turn(0) + turn(1)).replace(SESSION, another.stem).replace('"u', '"v').replace('"e', '"f'), 6)
        for watch in (one, two):  # whatever they have not seen by now, the import below brings
            assert watch.end()[0] == 0
    with library.open(folder / ".weft" / "ledger.db") as watched, library.open(tmp_path / "cold.db") as cold:
        cold.imports.share_with(watched)
    for path in (session, another):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert weft("import").code == 0
    assert weft("import", "--ledger", str(tmp_path / "cold.db")).code == 0
    with library.open(folder / ".weft" / "ledger.db") as watched, library.open(tmp_path / "cold.db") as cold:
        assert {each.id: each.digest for each in watched.log()} == {each.id: each.digest for each in cold.log()}
        assert {each.label: each.head for each in watched.sessions()} == {
            each.label: each.head for each in cold.sessions()
        }
        assert watched.usage.report("session") == cold.usage.report("session")


def present() -> str:
    return iso_from_ms(SystemClock().now_ms())


@pytest.fixture
def live(weft: Shell, session: Path) -> Path:
    """A turn that is a fact, and one that is not yet."""
    session.write_text(turn(0) + line("u1", "e0", "user", "still asking", timestamp=present()))
    assert weft("import").code == 0
    return session


def test_a_provisional_turn_is_marked_wherever_its_session_is_shown(weft: Shell, live: Path) -> None:
    assert "[provisional]" in weft("sessions").out
    log = weft("log", SESSION[:8]).out
    assert log.startswith("provisional (")
    assert "still asking" in log
    assert weft("log", "--oneline").out.startswith("provisional (")
    assert "still asking" in weft("log", "--session", SESSION[:8]).out
    assert "still asking" not in weft("log", "-n", "0").out
    shown = weft("show", SESSION[:8]).out
    assert "provisional: still being written, not a turn yet" in shown
    assert shown.index("answer 0") < shown.index("still asking")
    assert "still asking" in on_terminal(weft.folder, "log", "--graph")[1]


def test_a_provisional_turn_is_marked_in_json(weft: Shell, live: Path) -> None:
    (listed,) = weft.json("sessions")
    (tail,) = listed["provisional"]
    assert (tail["provisional"], tail["id"], tail["source"]) == (True, None, str(live))
    first, second = weft.json("log")
    assert (first["provisional"], first["parent_id"]) == (True, second["id"])
    assert weft.json("show", SESSION[:8])["provisional"] == [tail]


def test_what_leaves_out_a_provisional_turn_says_so(weft: Shell, live: Path) -> None:
    for command, done in ((("sessions",), "counted"), (("usage",), "counted"), (("search", "asking"), "searched")):
        line = f"1 turn is still being written, and not {done} yet: `weft import` takes it once it has ended"
        assert line in weft(*command).err.splitlines()
    assert weft.json("usage")["provisional"] == 1
    assert json.loads(weft("--json", "search", "asking").err.splitlines()[-1]) == {"provisional": 1}


def test_a_session_with_nothing_but_a_provisional_turn_can_be_looked_at(weft: Shell, session: Path) -> None:
    session.write_text(line("u0", None, "user", "only asking", timestamp=present()))
    assert weft("import").code == 0
    assert "[provisional] only asking" in weft("sessions").out
    assert "only asking" in weft("show", SESSION[:8]).out
    assert weft.json("show", SESSION[:8])["provisional"] is True
    assert "only asking" in weft("log", SESSION[:8]).out


def test_what_is_a_turn_now_is_not_provisional_any_more(weft: Shell, live: Path) -> None:
    with live.open("a") as file:
        file.write(line("a1", "u1", "assistant", [{"type": "text", "text": "answered"}]))
    os.utime(live, (LONG_AGO, LONG_AGO))
    assert weft("import").code == 0
    assert "provisional" not in weft("sessions").out + weft("log").out + weft("show", SESSION[:8]).out
    assert weft.json("sessions")[0]["provisional"] == []


def test_a_wrong_name_is_refused_as_ever_while_something_is_provisional(weft: Shell, live: Path) -> None:
    assert weft("log", "nothing-like-it").code == weft("show", "nothing-like-it").code == 3


def live_turn(number: int, folder: Path) -> str:
    """One that ends now, of a session that works in a folder."""
    now = iso_from_ms(SystemClock().now_ms())
    return turn(number).replace("2026-01-02T03:04:05.678Z", now).replace('"/home/dev/shop"', json.dumps(str(folder)))


def test_the_files_of_turns_are_kept_where_a_folder_is_named(weft: Shell, session: Path, folder: Path) -> None:
    shop = folder.parent / "shop"
    shop.mkdir()
    with watching(folder, "--files", str(shop)) as watch:
        for kind in ("watching", "kept"):  # whichever comes first
            if all(told["type"] != kind for told in watch.told):
                watch.until(kind)
        (shop / "a").write_text("1")
        write(session, live_turn(0, shop), seed=7)
        kept = watch.until("kept")
        assert kept["folder"] == str(shop)
        (shop / "a").unlink()
        code, stopped = watch.end()
    assert (code, stopped["turns"], stopped["snapshots"], stopped["problems"]) == (0, 1, 1, 0)
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        (snapshot,) = ledger.resources.snapshots_of_turn(kept["turn"])
        assert snapshot.id == kept["snapshot"]
    assert (folder / ".weft" / "ledger.db-files" / "trees").is_dir()


def answered_turn(number: int, shop: Path) -> str:
    """One of which the file does not say how long it took: it ends with the model's answer."""
    asked, answer, _ = live_turn(number, shop).splitlines()
    record = json.loads(answer)
    record["message"]["stop_reason"] = "end_turn"
    named = asked.replace(f'"e{number - 1}"', f'"a{number - 1}"')
    return f"{named}\n{json.dumps(record)}\n"


@pytest.mark.slow("a dozen commands on files, beside a process that follows")
def test_commands_on_files_work_on_a_session_that_is_followed(weft: Shell, session: Path, folder: Path) -> None:
    shop = folder.parent / "shop"
    shop.mkdir()
    with watching(folder, "--files", str(shop)) as watch:
        for kind in ("watching", "kept"):  # whichever comes first
            if all(told["type"] != kind for told in watch.told):
                watch.until(kind)
        for number, text in enumerate(("good\n", "good\nmore\n", "bad\n")):
            (shop / "a").write_text(text)
            write(session, answered_turn(number, shop), seed=number)
            watch.until("kept")
            (shop / f"hand{number}").write_text("by hand\n")
        code, stopped = watch.end()
    assert (code, stopped["turns"], stopped["snapshots"]) == (0, 3, 3)
    (label,) = (one["label"] for one in weft.json("sessions"))
    assert weft("diff", "--files", f"{label}~1", label).out == "M a\nA hand1\n", (
        "by hand after a turn is the next one's"
    )
    found = weft("bisect", label, "--restore", "--check", "grep -q good a")
    assert (found.code, "question 2" in found.out) == (0, True), found.err
    assert weft("checkout", f"{label}~1", "--to", "out").code == 0
    assert (folder / "out" / "a").read_text() == "good\nmore\n"
    assert weft("fork", f"{label}~1", "alt", "--in", "copy").code == 0
    (folder / "copy" / "b").write_text("found\n")
    merged = weft("merge", "alt", "--into", label, "--text", "b is the answer")
    assert merged.code == 0, merged.err
    assert (shop / "b").read_text() == "found\n"
    assert ((shop / "a").read_text(), (shop / "hand2").exists()) == ("bad\n", True)
    for _ in range(2):
        assert weft("undo", label).code == 0
    assert {path.name: path.read_text() for path in shop.iterdir()} == {
        "a": "good\nmore\n",
        "hand0": "by hand\n",
    }
    for _ in range(2):
        assert weft("undo", label, "--redo").code == 0
    assert ((shop / "a").read_text(), (shop / "b").exists()) == ("bad\n", True)


def test_folders_are_kept_by_a_watch_alone(weft: Shell, folder: Path) -> None:
    assert "--files goes with --watch" in weft("import", "--files", str(folder)).err
    assert weft("import", "--watch", "--files", str(folder / "nowhere")).code == 2
