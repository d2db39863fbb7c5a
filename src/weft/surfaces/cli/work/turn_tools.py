"""Requests about tool calls of the turns that a command runs: told at the terminal and by
people's channels, and answered by what is typed there, also while an answer comes.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from weft.kernel.clock import SystemClock
from weft.kernel.errors import NotFound, WeftError
from weft.ledger.api import Ledger, Runs
from weft.runtime.replies import LOOK_SECONDS
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.work.approvals import (
    ApprovalAnswer,
    answer_shown,
    answered_line,
    approval_lines,
    how_to_answer,
    notice_of,
    proposal_words,
    queue_before,
    short_id,
    waiting_document,
    waiting_words,
)

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Approval
    from weft.runtime.invoke.invocation import InvocationContext
    from weft.surfaces.cli.command_line import Call


# --- Requests about tool calls while a turn runs: told at the terminal and by people's channels, and answered by what
# is typed there.

QUESTION = "[y]es once, for this [s]ession, propose a [r]ule, [n]o, [a]bort the turn?"
YES, NO = ApprovalAnswer(is_granted=True), ApprovalAnswer(is_granted=False)
ANSWERS = {
    "y": YES,
    "s": ApprovalAnswer(is_granted=True, scope="session"),
    "r": ApprovalAnswer(is_granted=True, scope="rule"),
    "n": NO,
    "a": ApprovalAnswer(is_granted=False, abort=True),
}
WORDS = {"yes": "y", "session": "s", "rule": "r", "no": "n", "abort": "a"}
Show = Callable[[Sequence[Line]], None]


class ApprovalPrompts:
    """The requests of the turns that one process runs. `people` is how people are told, within the event loop. `show`
    puts lines on the terminal that a person answers at; without it they are notes. Answers are those of whoever opened
    the ledger, unless `answer_as` says who else sits there."""

    def __init__(self, call: Call, ledger: Ledger, people: Callable[[], InvocationContext]) -> None:
        self._call, self._ledger, self._people = call, ledger, people
        self._answering = ledger
        self.show: Show | None = None
        self._waiting: list[Approval] = []
        self._shown: Approval | None = None
        """The one that an answer is for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_typed = False
        self._known: set[str] = set()
        """The ids of the requests that were shown."""

    def answer_as(self, ledger: Ledger) -> None:
        """Requests are shown to, and answered by, whoever acts in this ledger."""
        self._answering = ledger

    def asked(self, id: str) -> None:
        """A request of this id was recorded: show it, and tell people. Called within a running event loop."""
        is_new = id not in self._known
        self._known.add(id)
        self._begin(self._ask_person(id, is_shown=is_new, notifies_approvers=True))

    def asked_elsewhere(self, id: str) -> None:
        """Show a request of a turn that another process may run: that process tells people. Once it is shown it is not
        shown again."""
        if id not in self._known:
            self._known.add(id)
            self._begin(self._ask_person(id, is_shown=True, notifies_approvers=False))

    async def show_queue(self, admission: Admission) -> None:
        """Say what comes before a message that was just admitted, and show the requests that its session waits for:
        whoever asked may be gone, and nobody else would show them."""
        before = await self._people().across(partial(queue_before, self._ledger, admission))
        if before.words:
            self._show([["before this message in session ", Span(admission.session, "label"), f": {before.words}"]])
        for approval in before.approvals:
            self._known.add(approval.id)
            await self._show_request(approval)

    async def show_requests(self, session: str) -> None:
        """Show what a session, by its id, and its workers ask people for, again and again: their turns may run in
        another process, which tells people."""
        runs = Runs(self._ledger)
        while True:
            for approval in await self._people().across(partial(runs.open_requests, session)):
                self.asked_elsewhere(approval.id)
            await asyncio.sleep(LOOK_SECONDS)

    @contextmanager
    def typed(self) -> Iterator[None]:
        """Take answers from the lines that are typed at the terminal, if somebody sits there."""
        if self._call.json or self._call.quiet or not (sys.stdin.isatty() and sys.stderr.isatty()):
            yield
            return
        with self.answered_here(), TypedAhead(sys.stdin.fileno(), self._take_line).reading():
            yield

    @contextmanager
    def answered_here(self) -> Iterator[None]:
        """Meanwhile requests are shown whole, since whoever reads them can answer."""
        self._is_typed = True
        try:
            yield
        finally:
            self._is_typed, self._shown = False, None
            self._waiting.clear()

    def take(self, line: str) -> bool:
        """Whether a line answers the request that is shown."""
        word = line.strip().lower()
        answer = ANSWERS.get(WORDS.get(word, word))
        if answer is None or self._shown is None:
            return False
        self.answer(None, answer)
        return True

    def answer(self, id: str | None, answer: ApprovalAnswer) -> None:
        """Answer the request that is shown; an id must be its own."""
        approval = self._shown
        if approval is None or not approval.id.startswith((id or "").lower()):
            self._show([[Span("no such tool call is shown here; `weft approvals` lists what waits", "warn")]])
            return
        self._shown = None
        self._begin(self._answer(approval, answer))

    async def aclose(self) -> None:
        """Wait until what is being told and answered is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_line(self, line: str) -> bool:
        if not self.take(line) and self._shown is not None:
            self._show([[Span(QUESTION, "warn")]])
        return True

    async def _ask_person(self, id: str, *, is_shown: bool, notifies_approvers: bool) -> None:
        from weft.runtime.invoke.handlers import notify_approvers

        try:
            approval = await self._people().across(partial(self._ledger.approvals.get, id))
        except WeftError as error:
            self._show([[Span(str(error), "bad")]])
            return
        if is_shown and await self._people().across(partial(self._is_readable, id)):
            await self._show_request(approval)
        if notifies_approvers:
            await notify_approvers(self._people(), approval, notice_of, lambda text: self._show([[Span(text, "warn")]]))

    def _is_readable(self, id: str) -> bool:
        """Whether whoever sits at the terminal may see a request."""
        try:
            self._answering.approvals.get(id)
        except NotFound:
            return False
        return True

    async def _show_request(self, approval: Approval) -> None:
        """At the terminal whole, where it is answered; elsewhere in a line that says how to answer it."""
        if self._is_typed:
            self._waiting.append(approval)
            await self._show_next()
        else:
            words = f"{waiting_words(approval)}; {how_to_answer(approval)}"
            line: list[Span | str] = [Span("waits for a person: ", "warn"), words]
            if self.show is not None:
                self.show([line])
            else:
                self._call.wait_for(waiting_document(approval), *line)

    async def _show_next(self) -> None:
        """Show the oldest request that is still open, unless one is shown and waits for its answer."""
        while self._waiting:
            oldest = self._waiting[0]
            current = await self._people().across(partial(self._ledger.approvals.get, oldest.id))
            if not self._waiting or self._waiting[0] is not oldest:
                continue
            if current.state == "open":
                if self._shown is None:
                    self._shown = oldest
                    self._show([*approval_lines(oldest, SystemClock().now_ms()), [Span(QUESTION, "warn")]])
                return
            self._waiting.remove(oldest)
            self._shown = None

    async def _answer(self, approval: Approval, answer: ApprovalAnswer) -> None:
        try:
            answered = await self._people().across(partial(answer_shown, self._answering, approval, answer))
        except WeftError as error:
            self._show([[Span(f"approval {short_id(approval)}: {error}", "bad")]])
        else:
            self._show([answered_line(answered)])
            for policy in answered.proposed:
                self._show([[proposal_words(policy)]])
        await self._show_next()

    def _show(self, lines: Sequence[Line]) -> None:
        if self.show is not None:
            self.show(lines)
            return
        for line in lines:
            self._call.note(*line)


# --- Lines that are typed at a terminal while an answer comes.

READ_BYTES = 4096


def descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor of a stream; None where it has none, such as one that lies in memory."""
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


class TypedAhead:
    """Reads whole lines beside an answer. `take` is called with each; one that it does not take waits for the prompt.
    The terminal edits and echoes lines itself meanwhile, and hands them over when they are complete."""

    def __init__(self, file: int | None, take: Callable[[str], bool]) -> None:
        """Without a file nothing is read beside an answer."""
        self._file, self._take = file, take
        self._waiting: deque[str] = deque()
        self._begun = b""
        self._is_ended = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within a running event loop."""
        if self._file is None:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._file, self._read_lines)
        try:
            yield
        finally:
            loop.remove_reader(self._file)

    def _read_lines(self) -> None:
        assert self._file is not None, "what is read has a file"
        data = os.read(self._file, READ_BYTES)
        if not data:  # Ctrl-D: the conversation ends at the next prompt
            self._is_ended = True
            asyncio.get_running_loop().remove_reader(self._file)
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if not self._take(text):
                self._waiting.append(text)

    def next_line(self) -> str | None:
        """The next line that waits; None where there is none. Raises EOFError where nothing more comes."""
        if self._waiting:
            return self._waiting.popleft()
        if self._is_ended:
            raise EOFError
        return None
