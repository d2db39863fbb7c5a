"""Several changes of one file in one answer: each is planned, decided on and run after the one before it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.broker.bench import PlayedProvider, run, saying
from tests.runtime.broker.crash_driver import Died, Doom, DoomedCrossing, raise_died
from tests.runtime.broker.test_crashes import dead_owner
from tests.runtime.broker.test_gated_calls import Gated
from tests.sizes import points
from weft.kernel.clock import FixedClock
from weft.kernel.enums import Decision
from weft.kernel.events import ToolCallRequested, ToolResult
from weft.ledger.api import Ledger
from weft.ledger.model import ToolResultPart, ToolUsePart
from weft.runtime.broker.turn_state import Run
from weft.runtime.inference.model_requests import InferenceRequest
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import EditTool, WriteTool

EDITS = (("a.txt", "one", "two"), ("./a.txt", "two", "three"), ("b.txt", "one", "other"), ("link", "three", "four"))
"""Each of a.txt needs what the one before it wrote; `link` leads to a.txt."""


class Editing(Gated):
    """A bench with files, whose model edits them. Its tools work in threads, which are waited for longer."""

    looks = 200_000

    def __init__(self, ledger: Ledger, clock: FixedClock, folder: Path, decision: Decision, *answers: Any) -> None:
        super().__init__(ledger, clock, decision, *answers)
        if not (folder / "link").is_symlink():
            for name in ("a.txt", "b.txt"):
                (folder / name).write_text("one\n")
            (folder / "link").symlink_to("a.txt")
        workspace = WorkspaceFolder(folder)
        self.tools |= {"edit": EditTool(workspace), "write": WriteTool(workspace)}  # type: ignore[dict-item]
        self.folder = folder

    def grant_next(self) -> str:
        """Grant the one request that is open, and say what it shows of the change."""
        (request,) = self.ledger.approvals.list(states=("open",))
        self.ledger.approvals.grant(request.id, plan_digest=request.plan_digest)
        lines = (request.shown or "").partition("\n\n")[0].splitlines()
        return " ".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))

    @property
    def contents(self) -> list[str]:
        return [(self.folder / name).read_text() for name in ("a.txt", "b.txt")]


def edits(*changes: tuple[str, str, str]) -> Reply:
    uses = tuple(
        ToolUsePart(f"call-{number}", "edit", {"path": path, "old_text": old, "new_text": new})
        for number, (path, old, new) in enumerate(changes)
    )
    return Reply(parts=uses, finish=FinishReason.TOOL_CALL, model_id="m", model="m-1", provider="there")


def test_changes_of_one_file_run_in_the_order_of_their_calls(ledger: Ledger, clock: FixedClock, tmp_path: Path) -> None:
    async def body() -> None:
        editing = Editing(ledger, clock, tmp_path, Decision.ALLOW, edits(*EDITS), saying("Done"))
        message = editing.bench.admit()
        await editing.serve(message)
        assert editing.contents == ["four\n", "other\n"]
        events = editing.bench.events(message)
        calls = [one.id for one in events if isinstance(one.event, ToolCallRequested)]
        results = [one.event for one in events if isinstance(one.event, ToolResult)]
        ended = [calls.index(one.call.event_id) for one in results]
        assert [str(one.status) for one in results] == ["ok"] * 4
        assert [place for place in ended if place != 2] == [0, 1, 3]
        (told,) = (one.content for one in editing.bench.provider.requests[-1].messages if one.role == "tool")
        assert isinstance(told, tuple)
        ids = [part.tool_call_id for part in told if isinstance(part, ToolResultPart)]
        assert ids == [f"call-{number}" for number in range(4)], "told together"
        assert list(ledger.verify()) == []

    run(body())


def test_a_person_is_shown_each_change_as_it_will_be_when_it_runs(
    ledger: Ledger, clock: FixedClock, tmp_path: Path
) -> None:
    """After each request the turn is parked, and another broker goes on with it."""

    async def body() -> None:
        editing = Editing(ledger, clock, tmp_path, Decision.ASK, edits(*EDITS[:2]), saying("Done"))
        message = editing.bench.admit()
        await editing.serve(message)
        assert Run("").apply(editing.bench.events(message)).is_parked
        assert editing.grant_next() == "-one +two"
        await editing.serve(message)
        assert editing.contents == ["two\n", "one\n"]
        assert editing.grant_next() == "-two +three"
        await editing.serve(message)
        assert editing.contents == ["three\n", "one\n"]
        assert editing.bench.state(message)[0] == "answered"

    run(body())


@pytest.mark.parametrize("abort", [False, True])
def test_a_change_after_a_refused_one_is_decided_on_by_itself(
    ledger: Ledger, clock: FixedClock, tmp_path: Path, abort: bool
) -> None:
    async def body() -> None:
        changes = (("a.txt", "one", "two"), ("a.txt", "one", "three"))
        editing = Editing(ledger, clock, tmp_path, Decision.ASK, edits(*changes), saying("Done"))
        message = editing.bench.admit()
        await editing.serve(message)
        (request,) = ledger.approvals.list(states=("open",))
        ledger.approvals.deny(request.id, abort=abort)
        await editing.serve(message)
        if abort:
            assert editing.contents == ["one\n", "one\n"]
            assert editing.bench.interruptions(message) == ["approval_denied"]
            return
        assert editing.grant_next() == "-one +three"
        await editing.serve(message)
        assert editing.contents == ["three\n", "one\n"]

    run(body())


class EditingModel(PlayedProvider):
    """Asks for the edits until it is told what came of them."""

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        is_told = any(message.role == "tool" for message in request.messages)
        return saying("Done") if is_told else edits(*EDITS)


async def die_and_go_on(folder: Path, clock: FixedClock, point: str, owner: str) -> Doom:
    """Where it died, if it met the point."""
    (folder / "files").mkdir(parents=True)
    doom = Doom(point, raise_died)
    for one in (doom, Doom()):
        with weft.open(folder / "ledger.db") as ledger:
            editing = Editing(ledger, clock, folder / "files", Decision.ALLOW)
            editing.bench.provider = EditingModel()
            editing.bench.crossing = DoomedCrossing(one, ledger)  # type: ignore[assignment]
            message = editing.bench.admit(key="once")
            if one is doom:
                ledger._owner = owner
                with suppress(Died):
                    await editing.bench.answered(message)
                ledger._writer.give_all_up()  # a process that dies gives nothing back
                continue
            await editing.bench.answered(message)
            assert editing.contents == ["four\n", "other\n"]
            turn = ledger.inbox.get(message).turn or ""
            assert [call.outcome for call in ledger.tool_calls(turn)] == ["ok"] * 4
            assert list(ledger.verify()) == []
    return doom


@pytest.mark.usefixtures("unattended")
def test_a_crash_at_any_step_changes_nothing_of_that(quick_path: Path, clock: FixedClock) -> None:
    async def body() -> None:
        trial = partial(die_and_go_on, clock=clock, owner=dead_owner())
        whole = await trial(quick_path / "whole", point="")
        assert not whole.is_met
        assert whole.calls >= 10
        for k in points(whole.calls, test=4):
            assert (await trial(quick_path / f"{k}", point=f"before:{k + 1}")).is_met

    run(body())
