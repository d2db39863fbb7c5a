"""`weft trigger`: made, listed, fired, paused and deleted; and the examples, from the file to the answer."""

from __future__ import annotations

import hmac
import json
import os
import signal
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest

import weft as weft_package
from tests.attacks.test_triggers import ODD
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import chat_saying
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import beside, serve_until_empty, stock, wait_until
from weft.kernel.clock import FixedClock
from weft.ledger.api import CursorMove, Ledger, Runs, TriggerLog
from weft.programs import Programs
from weft.programs.program_kinds import KindRow
from weft.runtime.invoke import trigger_job

EXAMPLES = Path(__file__).parents[2] / "examples"
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)


def test_a_trigger_is_made_listed_fired_paused_and_deleted(weft: Shell) -> None:
    made = weft("trigger", "create", "daily", "--cron", "@daily", "--zone", "Asia/Tokyo", "--message", "hello")
    assert (made.code, made.out) == (0, "trigger daily is active\n"), made.err
    assert weft("trigger", "create", "none", "--message", "x").code == 2
    assert weft("trigger", "create", "two", "--cron", "@daily", "--every", "1h", "--message", "x").code == 2
    assert weft("trigger", "create", "odd", "--cron", "0 0 31 2 *", "--message", "x").code != 0
    (listed,) = weft.json("trigger", "list")
    assert listed["on"] == {"cron": {"expression": "0 0 * * *", "zone": "Asia/Tokyo"}}
    assert listed["next_due"] % DAY_MS == 15 * 3_600_000
    run = weft.json("trigger", "run", "daily", "--payload", '{"a": 1}')
    assert (run["is_new"], run["session"]) == (True, "trigger:daily")
    assert weft.json("trigger", "history", "daily")[0]["message"] == run["message"]
    assert "hello" in weft("trigger", "show", "daily").out
    assert weft("trigger", "pause", "daily", "--reason", "holidays").code == 0
    assert weft.json("trigger", "show", "daily")["reason"] == "holidays"
    assert weft("trigger", "run", "daily").code != 0
    assert weft("trigger", "resume", "daily").out == "trigger daily is active\n"
    assert weft("trigger", "delete", "daily").code == 0
    assert weft.json("trigger", "list") == []


def test_the_screen_says_what_is_missing_and_what_comes_next(weft: Shell) -> None:
    assert "there is no trigger; make one" in weft("trigger", "list").err
    create = ("trigger", "create", "t", "--message", "x")
    for options, words in (
        (("--every", "1h", "--zone", "UTC"), "only --cron or --at takes --zone\n"),
        (("--every", "1h", "--secret", "S"), "only --webhook takes --secret\n"),
        (("--cron", "@daily", "--where", "a=b"), "only --event takes --where\n"),
        (("--cron", "@daily", "--pattern", "*.py"), "only --file takes --pattern\n"),
        (("--webhook", "github"), "the variable that holds its secret: name it with --secret\n"),
    ):
        refused = weft(*create, *options)
        assert (refused.code, words in refused.err) == (2, True), refused.err
    assert "the field minute is 0 to 59" in weft(*create, "--cron", "61 7 * * *").err
    assert "a day that comes in some month" in weft(*create, "--cron", "0 0 30 2 *").err
    assert weft(*create, "--at", "2099-12-24T18:00Z").code == 0
    assert "t has not fired" in weft("trigger", "history", "t").err
    shown = weft("trigger", "show", "t").out
    assert "to      its maker, or session trigger:t\n" in shown
    assert "late    a missed time does not fire, and is told here\n" in shown
    assert "a broker answers it: `weft broker`" in weft("trigger", "run", "t").err


def test_a_trigger_that_names_what_is_not_there_is_refused_with_a_hint(weft: Shell) -> None:
    weft("init")
    for options, words in (
        (("--task", "gone"), "no task 'gone'"),
        (("--room", "gone"), "no room 'gone'"),
        (("--file", "gone"), "there is no folder"),
        (("--every", "1h", "--to", "gone"), "no agent 'gone'"),
        (("--every", "1h", "--to", "gone", "--post-to", "team"), "no agent 'gone'"),
        (("--every", "1h", "--thread", "gone"), "'gone'"),
    ):
        refused = weft("trigger", "create", "t", "--message", "x", *options)
        assert (refused.code != 0, words in refused.err, "hint: " in refused.err) == (True, True, True), refused.err
    assert weft.json("trigger", "list") == []
    assert weft("agent", "create", "writer", "--prompt", "You write.").code == 0
    assert weft("room", "create", "team").code == 0
    to_room = ("--every", "1h", "--message", "x", "--to", "writer", "--post-to", "team")
    assert "'writer' takes no part in room 'team'" in weft("trigger", "create", "t", *to_room).err
    assert weft("room", "add", "team", "writer").code == 0
    assert weft("trigger", "create", "t", *to_room).code == 0


def test_a_trigger_is_configured_anew(weft: Shell) -> None:
    assert weft("trigger", "create", "t", "--cron", "@daily", "--zone", "Asia/Tokyo", "--message", "x").code == 0
    assert weft("trigger", "configure", "t").code == 2
    assert weft("trigger", "configure", "t", "--message", "y", "--session", "notes", "--reason", "better").code == 0
    shown = weft.json("trigger", "show", "t")
    assert (shown["config"]["message"], shown["to"]) == ("y", {"session": "notes"})
    assert shown["on"] == {"cron": {"expression": "0 0 * * *", "zone": "Asia/Tokyo"}}
    assert weft("trigger", "configure", "t", "--cron", "@hourly", "--set", "breaker=2").code == 0
    shown = weft.json("trigger", "show", "t")
    assert (shown["on"], shown["config"]["breaker"]) == ({"cron": {"expression": "0 * * * *", "zone": "UTC"}}, 2)
    changed = weft("trigger", "configure", "t", "--every", "2h", "--smart", "notes", "--set", "breaker=null")
    assert changed.out == "trigger t is active (version 4)\n"
    shown = weft.json("trigger", "show", "t")
    assert (shown["on"], shown["to"], shown["config"].get("breaker")) == ({"interval": "2h"}, {"smart": "notes"}, None)
    refused = weft("trigger", "configure", "t", "--set", "on.interval=null", "--set", "on.task=gone")
    assert "no task 'gone'" in refused.err
    assert weft("trigger", "configure", "t", "--every", "3h", "--expected", "1").code != 0
    assert weft.json("trigger", "show", "t")["on"] == {"interval": "2h"}


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_trigger_of_another_ledger_that_means_nothing_is_listed_with_why(
    weft: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken_over: bool
) -> None:
    facts = tmp_path / "facts.jsonl"
    with weft_package.open(tmp_path / "other.db") as other, monkeypatch.context() as patches, facts.open("wb") as file:
        patches.setattr(KindRow, "checked_config", lambda kind, config: config)
        for number, config in enumerate(ODD):
            Programs(other).create("trigger", f"odd-{number}", config)
        other.upkeep.export_facts(file)
    assert weft("trigger", "create", "daily", "--cron", "@daily", "--message", "hello").code == 0
    with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger, facts.open("rb") as file:
        ledger.upkeep.import_facts(file)
        for pending in Programs(ledger).pending() if is_taken_over else ():
            Programs(ledger).take_over(pending.id)
    listed = weft("trigger", "list")
    assert (listed.code, listed.err) == (0, "")
    assert "cannot be read: config.on: names nothing" in listed.out
    triggers = {one["name"]: one for one in weft.json("trigger", "list")}
    assert triggers["daily"]["fault"] is None
    assert triggers["daily"]["next_due"]
    for number in range(len(ODD)):
        name = f"odd-{number}"
        assert triggers[name]["fault"]
        assert f"cannot be read: {triggers[name]['fault']}" in weft("trigger", "show", name).out
        assert weft("trigger", "run", name).code == 4


def test_a_delivery_is_taken_from_standard_input_once(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    create = ("trigger", "create", "hook", "--webhook", "github", "--message", "issue ${payload.number}")
    assert weft(*create).code == 2
    assert weft(*create, "--secret", "HOOK_SECRET").code == 0
    body = json.dumps({"number": 7})
    signature = hmac.new(b"s3cret", body.encode(), sha256).hexdigest()
    delivery = f"POST /hook HTTP/1.1\r\nX-Hub-Signature-256: sha256={signature}\r\n\r\n{body}"
    first = weft.json("trigger", "deliver", "hook", stdin=delivery)
    second = weft.json("trigger", "deliver", "hook", stdin=delivery)
    assert (first["is_new"], second["is_new"], first["message"]) == (True, False, second["message"])
    forged = weft("trigger", "deliver", "hook", stdin=delivery.replace("7}", "8}"))
    assert forged.code != 0
    assert "signature" in forged.err
    assert "issue 7" in weft("inbox").out


def test_the_nightly_summary_of_the_examples_is_answered(weft: Shell) -> None:
    weft("init")
    yesterday = FixedClock(int(time.time() * 1000) - DAY_MS)
    with weft_package.open(weft.folder / ".weft" / "ledger.db", clock=yesterday) as ledger:
        ledger.record_turn(session="parser", query="Fix the parser.", response="The parser is fixed.", model="m")
    with serving(chat_saying({"content": "A quiet day."}, usage=None)) as server:
        stock(weft, server.url)
        applied = weft("apply", str(EXAMPLES / "nightly-summary.yaml"))
        assert applied.code == 0, applied.err
        assert weft("apply", str(EXAMPLES / "nightly-summary.yaml")).code == 0
        assert weft("agent", "configure", "summariser", "--model", "fast").code == 0
        run = weft.json("trigger", "run", "nightly-summary")
        assert run["session"] == "summariser:main"
        code, _, err = serve_until_empty(weft)
        assert code == 0, err
        (request,) = server.received
    texts = [message["content"] for message in request.body["messages"]]
    assert "You summarise" in texts[0]
    assert "The parser is fixed." in texts[-1]
    (firing,) = weft.json("trigger", "history", "nightly-summary")
    assert (firing["state"], firing["source"]) == ("answered", "trigger")
    fired = weft.json("show", firing["turn"])["source_event_id"]
    emitted = [json.loads(line) for line in weft("graph", "emit").out.splitlines()]
    assert [event["kind"] for event in emitted if event["event_id"] == fired] == ["trigger_fired"]
    assert "A quiet day." in weft("show", firing["turn"]).out
    assert weft("verify").code == 0


def test_the_reviewer_of_the_examples_wakes_when_a_file_changes(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger_job, "FOLDER_MS", 20)
    is_looked_at, move_cursor = threading.Event(), TriggerLog.move_cursor

    def note_look(log: TriggerLog, trigger: str, cursor: CursorMove) -> bool:
        is_moved = move_cursor(log, trigger, cursor)
        is_looked_at.set()
        return is_moved

    monkeypatch.setattr(TriggerLog, "move_cursor", note_look)
    monkeypatch.chdir(weft.folder)
    (weft.folder / "a.py").write_text("x = 1\n")
    with serving(chat_saying({"content": "Looks good."}, usage=None)) as server:
        stock(weft, server.url)
        assert weft("apply", str(EXAMPLES / "review-on-change.yaml")).code == 0
        assert weft("agent", "configure", "reviewer", "--model", "fast").code == 0

        def change_and_stop(ledger: Ledger) -> None:
            assert is_looked_at.wait(300)
            (weft.folder / "a.py").write_text("x = 1 / 0\n")
            wait_until(ledger, lambda: bool(Programs(ledger).trigger_firings("review")))
            wait_until(ledger, lambda: not ledger.inbox.list())
            os.kill(os.getpid(), signal.SIGTERM)

        with beside(weft, change_and_stop):
            served = weft("broker")
        assert served.code == 0, served.err
        request = server.received[0]
    assert '"path": "a.py"' in request.body["messages"][-1]["content"]
    (firing,) = weft.json("trigger", "history", "review")
    assert (firing["state"], firing["source"]) == ("answered", "event")
    with weft_package.open(weft.folder / ".weft" / "ledger.db") as ledger:
        assert Runs(ledger).is_untrusted(firing["turn"])
