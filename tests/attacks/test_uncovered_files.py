"""A person allows a command that names a hidden file: this command reads this file, and no other does or is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_approved_bytes import ACTING, UNASKED, performed
from tests.runtime.broker.bench import run, saying
from tests.runtime.broker.test_gated_calls import Gated, History
from tests.sandbox import machine_sandbox
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.enums import Decision
from weft.ledger.api import Ledger
from weft.ledger.model import ToolUsePart
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.tool.gate import ToolGate
from weft.runtime.tools.shell import ShellTool
from weft.surfaces.opening import open as open_ledger

NAMED, OTHER = "canary-named-51", "canary-other-52"
FILES = {
    ".env": NAMED, ".env.production": OTHER, "apps/.env": OTHER, ".netrc": OTHER, "terraform.tfstate": OTHER,
    "plain.txt": "plain",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if str(tmp_path).startswith("/dev/"):
        pytest.skip("no sandbox shows a workspace in /dev")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


class AttackedRunner(CommandRunner):
    """Has somebody at work between the last look at the files and the start of the command."""

    def __init__(self, attack: Callable[[], object], *, ledgers: tuple[Path, ...] = ()) -> None:
        protected = ProtectedPlaces(ledgers=ledgers, folders=(), secrets=SecretFiles())
        super().__init__(protected, sandbox=machine_sandbox())
        self._attack = attack

    async def run(self, *words: Any, **details: Any) -> ProcessOutcome:
        self._attack()
        return await super().run(*words, **details)


def shell(folder: Path, attack: Callable[[], object] = lambda: None) -> ShellTool:
    return ShellTool(folder, runner=AttackedRunner(attack))


def test_an_approved_command_reads_the_hidden_file_that_it_names_and_no_other(folder: Path) -> None:
    told = performed(shell(folder), {"cmd": "cat .env; find . -type f ! -name .env -exec cat {} + ; cat ./.e*n"})
    assert NAMED in told["stdout"]
    assert OTHER not in str(told)
    assert OTHER not in str(performed(shell(folder), {"cmd": "cat .en? .net* *.tfstate"}))


@pytest.mark.parametrize(
    "cmd", [". ./.env; cat .env", ["cat", ".env"], "cd apps && cat ../.env", "wc -c < .env; cat .env"]
)
def test_however_the_command_is_written_that_names_it(folder: Path, cmd: Any) -> None:
    assert NAMED in performed(shell(folder), {"cmd": cmd})["stdout"]


def test_a_command_that_nobody_approved_reads_none(folder: Path) -> None:
    told = performed(shell(folder), {"cmd": "cat .env"}, UNASKED)
    assert NAMED not in str(told)
    assert ".env" in told["hidden"]


@pytest.mark.parametrize("kind", ["symbolic", "through a folder"])
def test_a_link_to_a_hidden_file_uncovers_nothing(folder: Path, kind: str) -> None:
    if kind == "symbolic":
        (folder / "notes.txt").symlink_to(".netrc")
        (folder / ".env").unlink()
        (folder / ".env").symlink_to(".env.production")
        words = "notes.txt .env"
    else:
        (folder / "config").symlink_to("apps")
        words = "config/.env"
    assert OTHER not in str(performed(shell(folder), {"cmd": f"cat {words}"}))
    assert OTHER not in str(performed(shell(folder), {"cmd": f"for f in {words}; do . ./$f; cat $f; done"}))


def test_a_script_that_is_a_link_to_a_hidden_file_uncovers_nothing(folder: Path) -> None:
    (folder / "run.sh").symlink_to(".netrc")
    assert OTHER not in str(performed(shell(folder), {"cmd": "sh run.sh; cat run.sh"}))


def replaced(folder: Path) -> None:
    (folder / ".env.production").replace(folder / ".env")


def linked(folder: Path) -> None:
    (folder / ".env").unlink()
    (folder / ".env").symlink_to(".env.production")


def rewritten(folder: Path) -> None:
    (folder / ".env").write_text(OTHER)


@pytest.mark.parametrize("act", [replaced, linked, rewritten], ids=lambda act: act.__name__)
def test_a_file_that_is_replaced_before_the_start_shows_nothing_but_what_was_approved(
    folder: Path, act: Callable[[Path], None]
) -> None:
    told = performed(shell(folder, lambda: act(folder)), {"cmd": "cat .env || true"})
    assert OTHER not in str(told)
    assert told["code"] == "changed"


def test_a_ledger_that_is_called_as_a_hidden_file_stays_hidden(folder: Path) -> None:
    (folder / ".weft").mkdir()
    (folder / ".weft" / ".env").write_text(OTHER)
    ledger = folder / ".env"
    tool = ShellTool(folder, runner=AttackedRunner(lambda: None, ledgers=(ledger,)))
    told = performed(tool, {"cmd": "cat .env .weft/.env"})
    assert OTHER not in str(told)
    assert NAMED not in str(told)


def test_the_command_cannot_change_what_it_is_shown(folder: Path) -> None:
    performed(shell(folder), {"cmd": "echo x >> .env; rm -f .env; mv .env y; chmod 777 .env"})
    assert (folder / ".env").read_text() == f"{NAMED}\n"


def test_the_approval_names_the_file_and_only_the_answer_of_a_person_uncovers_it(folder: Path) -> None:
    def told_of(decision: Decision, answer: Callable[[Ledger, str], Any]) -> tuple[list[str], list[str]]:
        """What the model was told of two calls, and what a person was shown."""
        shown, told = list[str](), list[str]()

        async def body(ledger: Ledger) -> None:
            gated = Gated(ledger, FixedClock(SystemClock().now_ms()), decision, calls(1), calls(2), saying("I see"))
            tools = {"shell": shell(folder)}
            gate = ToolGate(tools, gated.policy, History(ledger), clock=gated.clock, workspace=folder)
            gated.bench.options |= {"tools": tools, "gate": gate, "acting": ACTING}
            message = gated.bench.admit()
            await gated.serve(message)
            for approval in ledger.approvals.list(states=["open"]):
                shown.append(approval.shown or "")
                answer(ledger, approval.id)
                await gated.serve(message)
            told.extend(
                str(call.result or call.error) for call in ledger.tool_calls(ledger.inbox.get(message).turn or "")
            )

        with open_ledger(":memory:") as ledger:
            run(body(ledger))
        return told, shown

    once = told_of(Decision.ASK, lambda ledger, id: ledger.approvals.grant(id, scope="session"))
    assert [NAMED in result for result in once[0]] == [True, False], "the second call was allowed for the session"
    assert "hidden files named by this command: .env\nIf you allow this call" in once[1][0]
    allowed, _ = told_of(Decision.ALLOW, lambda ledger, id: None)
    assert [NAMED in result for result in allowed] == [False, False]
    denied, _ = told_of(Decision.ASK, lambda ledger, id: ledger.approvals.deny(id))
    assert NAMED not in str(denied)


def calls(number: int) -> Reply:
    part = ToolUsePart(f"call-{number}", "shell", {"cmd": "cat .env"})
    return Reply(parts=(part,), finish=FinishReason.TOOL_CALL, model_id="m", model="m-1", provider="there")


def test_without_a_sandbox_nothing_is_said_to_be_hidden(folder: Path) -> None:
    secrets = SecretFiles(shown=lambda: [str(folder / ".env")])
    assert not secrets.hides(str(folder), ".env")
    assert secrets.hides(str(folder), "apps/.env")
    assert not secrets.hides(str(folder), "plain.txt")
    assert not secrets.hides(str(folder), "none/.env")
