"""Tool calls that wait for a person, among what else people are asked: shown whole, with
every character that cannot be seen escaped, then granted or denied with the hash of what was
shown. Those of the turns that a command runs are told at the terminal and by people's channels,
and answered by what is typed there, also while an answer comes.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import click
from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.kernel.enums import InboxState, QueueMode
from weft.kernel.errors import NotApplicable, NotFound, WeftError, without_credentials
from weft.kernel.typed_names import shell_word
from weft.ledger.api import Ledger, Runs
from weft.runtime.replies import LOOK_SECONDS
from weft.surfaces.cli.command_line import Call, NobodyToAsk, confirm
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.plain_text import exact_json, exact_lines
from weft.verbs.answers import AnsweredApproval, Listing, exact_document, short_id

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Approval
    from weft.programs import Programs
    from weft.programs.program_records import PersonRequest, Program
    from weft.runtime.invoke.invocation import InvocationContext
    from weft.verbs.answers import WaitingDocument


# --- How a tool call that waits for a person is shown: all of it, with every character that cannot be seen escaped.

EXACTLY = "  exactly"
_READ, _EXACT = "  | ", "    "
_STYLES = {"open": "warn", "granted": "good", "denied": "bad", "void": "dim", "expired": "dim"}
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def state_of(approval: Approval, now_ms: int) -> Span:
    """What became of it; an open one whose time is over can be answered no more."""
    is_late = approval.state == "open" and approval.expires_at is not None and approval.expires_at <= now_ms
    state = "expired" if is_late else approval.state
    return Span(state, _STYLES.get(state, ""))


def age_of(approval: Approval, now_ms: int) -> str:
    """How long ago it was asked: `5 min`."""
    seconds = max(0, (now_ms - approval.requested_at) // 1000)
    return next((f"{seconds // length} {unit}" for unit, length in _UNITS if seconds >= length), "0 s")


def waiting_words(approval: Approval) -> str:
    """Who wants to use which tool, where and why, in one line without what the tool is used on."""
    place = f" in session {approval.session!r}" if approval.session else ""
    why = f": {approval.rationale}" if approval.rationale else ""
    return without_credentials(f"{approval.agent!r} wants to use {approval.tool!r}{place}{why}")


def how_to_answer(approval: Approval) -> str:
    id = short_id(approval)
    return f"`weft approve {shell_word(id)}` shows and allows it, `weft reject {shell_word(id)}` refuses it"


def waiting_document(approval: Approval) -> WaitingDocument:
    """The same for programs."""
    from weft.verbs.answers import WaitingCall, WaitingDocument

    id = shell_word(short_id(approval))
    return WaitingDocument(
        waiting=WaitingCall(
            approval=approval.id,
            agent=approval.agent,
            session=approval.session,
            tool=approval.tool,
            why=None if approval.rationale is None else without_credentials(approval.rationale),
            approve=f"weft approve {id}",
            reject=f"weft reject {id}",
        )
    )


def approval_lines(approval: Approval, now_ms: int) -> list[Line]:
    """Everything that a person decides by."""
    at = f"{local_time(approval.requested_at)} ({age_of(approval, now_ms)} ago)"
    facts: list[tuple[str, Span | str | None]] = [
        ("agent", Span(approval.agent, "label")),
        ("session", approval.session),
        ("tool", Span(approval.tool, "tool")),
        ("why", approval.rationale),
        ("asked", at),
        ("expires", None if approval.expires_at is None else local_time(approval.expires_at)),
        ("answered", _answer_words(approval)),
        ("reason", approval.reason),
    ]
    lines: list[Line] = [["approval ", Span(short_id(approval), "id"), " is ", state_of(approval, now_ms)]]
    lines += [[Span(f"  {name:<9}", "dim"), value] for name, value in facts if value is not None]
    return [*lines, *call_lines(approval)]


def _answer_words(approval: Approval) -> str | None:
    if approval.answered_at is None:
        return None
    scope = f", for {approval.scope}" if approval.scope not in (None, "once") else ""
    return f"by {approval.answered_by}, {local_time(approval.answered_at)}{scope}"


def call_lines(approval: Approval) -> list[Line]:
    """What the call does, each line behind a mark that the text itself cannot leave; then exactly what would run."""
    try:
        document = exact_document(approval)
    except NotApplicable as error:
        return [[Span(f"  {error}", "bad")]]
    readable = (approval.shown or "").rpartition("\n\n")[0]
    lines: list[Line] = [[Span(_READ, "dim"), line] for line in exact_lines(readable)] if readable else []
    return [
        *lines,
        [Span(f"{EXACTLY} (sha256 {approval.plan_digest})", "dim")],
        [_EXACT, Span(exact_json(document), "code")],
    ]


# --- Tool calls that wait for a person, among what else people are asked.

ULID_LETTERS = 26
ANYBODY = "*"
_STATUSES = {"open": "pending", "granted": "approved", "denied": "rejected", "void": "void"}
_APPROVALS = 10_000
"""So many are listed among other requests; `weft approvals --all` lists all of them."""


def tool_requests(programs: Programs, name: str | None, status: str | None) -> list[PersonRequest]:
    """Requests about tool calls, as requests to people: all of them, or what one person answered or may answer."""
    person = None if name is None else programs.get(name, "human")
    approvals = programs.ledger.approvals.list(states=tuple(_STATUSES), limit=_APPROVALS)
    requests = [request_of(approval) for approval in approvals]
    return [
        request
        for request in requests
        if (status is None or request.status == status) and (person is None or _is_for_person(request, person))
    ]


def request_of(approval: Approval, human: str | None = None) -> PersonRequest:
    """A tool call's request in the form of other requests; without what the tool would be used on."""
    from weft.programs.program_records import PersonRequest

    return PersonRequest(
        id=approval.id,
        human=human or approval.answered_by or ANYBODY,
        text=waiting_words(approval),
        asks=True,
        status=_STATUSES[approval.state],
        asked_by=approval.agent,
        asked_at=approval.requested_at,
        decided_at=approval.answered_at,
        reason=approval.reason,
    )


def waiting_call(programs: Programs, id: str) -> Approval | None:
    """The tool call's request of this id; None where another request has it, or nothing does."""
    try:
        return programs.ledger.approvals.get(id)
    except NotFound:
        return None


def notice_of(approval: Approval, human: str) -> PersonRequest:
    """What a person is told by their channel: who wants what and why, and how to answer."""
    from msgspec.structs import replace

    request = request_of(approval, human)
    return replace(request, text=f"{request.text}. {how_to_answer(approval)}")


class QueueBefore(Struct, frozen=True):
    """What comes before a message in its session: the turn that is open there, messages that are answered earlier, and
    the requests to people that the open turn and its workers wait for."""

    has_turn: bool = False
    messages: int = 0
    approvals: tuple[Approval, ...] = ()

    @property
    def words(self) -> str:
        """What comes first; empty where nothing does."""
        earlier = [counted(self.messages, "earlier message")] if self.messages else []
        return " and ".join([*(["the turn that is open"] if self.has_turn else []), *earlier])


def queue_before(ledger: Ledger, admission: Admission) -> QueueBefore:
    """Nothing where the message waits no more, or interrupts what runs. Requests are those that the reader may see."""
    from weft.ledger.api import Runs

    runs = Runs(ledger)
    if runs.message_state(admission.message)[0] != InboxState.QUEUED:
        return QueueBefore()
    standing = runs.standing(admission.session_id)
    ids = [message.id for message in standing.queued]
    place = ids.index(admission.message) if admission.message in ids else len(ids)
    mode = standing.queued[place].mode if place < len(ids) else QueueMode.FOLLOWUP
    if mode == QueueMode.INTERRUPT:
        return QueueBefore()
    if standing.open_turn is None:
        return QueueBefore(messages=place)
    approvals = tuple(runs.open_requests(admission.session_id))
    if mode == QueueMode.STEER:  # it enters the open turn
        return QueueBefore(approvals=approvals)
    return QueueBefore(has_turn=True, messages=place, approvals=approvals)


def _is_for_person(request: PersonRequest, person: Program) -> bool:
    from weft.runtime.invoke.handlers import may_approve

    return request.human == person.name or (request.human == ANYBODY and may_approve(person))


# --- How a person answers for a tool call on the command line: it is shown whole, then granted or denied with its
# hash.


TAKEN_UP_SECONDS = 1.5
TAKEN_UP_LOOK_SECONDS = 0.1


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """What a person says to a request. `scope` is how far a yes reaches; with `abort` a no ends the turn."""

    is_granted: bool
    scope: str = "once"
    abort: bool = False
    reason: str | None = None


def answer_shown(ledger: Ledger, approval: Approval, answer: ApprovalAnswer) -> AnsweredApproval:
    """Record a person's answer to a request as it was shown."""
    from weft.verbs import message_verbs

    if not answer.is_granted:
        return message_verbs.reject(ledger, approval.id, abort=answer.abort, reason=answer.reason)
    scope, digest = answer.scope, approval.plan_digest
    return message_verbs.approve(ledger, approval.id, scope == "session", scope == "rule", answer.reason, digest=digest)


def ask_shown(call: Call, approval: Approval, *, is_granted: bool, is_sure: bool) -> None:
    """Show a request, and have the person who sees it confirm a yes. `is_sure`: they did so on the command line."""
    if not call.json:
        call.screen.page(approval_lines(approval, SystemClock().now_ms()))
    if is_granted:
        exact_document(approval)
        if state_of(approval, SystemClock().now_ms()).text == "open":  # any other is refused, whatever is answered
            _confirm(call, approval, is_sure=is_sure)


def decide(call: Call, ledger: Ledger, approval: Approval, answer: ApprovalAnswer, *, is_sure: bool) -> None:
    """Show a request, ask, and record the answer."""
    ask_shown(call, approval, is_granted=answer.is_granted, is_sure=is_sure)
    answered = answer_shown(ledger, approval, answer)
    if call.json:
        call.document(answered)
    else:
        show_answered(call, answered, ledger)


def show_answered(call: Call, answered: AnsweredApproval, ledger: Ledger) -> None:
    call.screen.show(*answered_line(answered))
    for policy in answered.proposed:
        call.note(proposal_words(policy))
    if not call.quiet and _stays_left(ledger, answered.approval.turn):
        call.note("no process works on the turn: `weft broker` goes on with it")


def _confirm(call: Call, approval: Approval, *, is_sure: bool) -> None:
    """Ask the person at the terminal, who was shown the request there."""
    hint = f"read it with `weft approvals {shell_word(short_id(approval))}`, then say --yes"
    if not is_sure and not call.screen.terminal:
        raise NobodyToAsk("nobody was shown what would be allowed", hint)
    confirm(call, "allow exactly this?", hint, is_sure=is_sure)


def _stays_left(ledger: Ledger, turn: str) -> bool:
    """Whether nobody goes on with a turn for so long after an answer: who waits for it looks
    several times a second."""
    from weft.ledger.api import Runs

    clock, runs = SystemClock(), Runs(ledger)
    until = clock.monotonic() + TAKEN_UP_SECONDS
    while runs.is_left(turn):
        if clock.monotonic() >= until:
            return True
        time.sleep(TAKEN_UP_LOOK_SECONDS)
    return False


def answered_line(answered: AnsweredApproval) -> Line:
    approval = answered.approval
    scope = " for this session" if approval.scope == "session" else ""
    return ["approval ", Span(short_id(approval), "id"), " is ", state_of(approval, 0), scope]


def proposal_words(policy: str) -> str:
    """What a person is told of a rule that was proposed with their answer."""
    return (
        f"a rule is proposed: `weft policy show {shell_word(policy)}` shows it,"
        f" `weft policy activate {shell_word(policy)}` puts it in force"
    )


# --- The tool calls that wait for a person, as a list.

NOTHING_WAITS = "no tool call waits"


def named_approval(call: Call, ledger: Ledger, id: str | None) -> Approval:
    """The request of this id. Without one nothing is chosen: what waits is listed, and UsageError raised; or
    NotApplicable, where nothing waits."""
    if id is not None:
        return ledger.approvals.get(id)
    from weft.verbs import message_verbs

    waiting = message_verbs.approvals(ledger)
    assert isinstance(waiting, Listing)
    if not waiting.items:
        raise NotApplicable(NOTHING_WAITS, "`weft approvals --all` lists what was answered")
    if call.json:
        call.documents(waiting.items)
    else:
        show_approvals(call, waiting.items, SystemClock().now_ms())
    raise click.UsageError("name the tool call that is meant")


def show_approvals(call: Call, approvals: Sequence[Approval], now_ms: int) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(short_id(approval), "id"),
            state_of(approval, now_ms),
            Span(approval.agent, "label"),
            approval.session or "",
            Span(approval.tool, "tool"),
            age_of(approval, now_ms),
            "" if approval.expires_at is None else local_time(approval.expires_at),
            approval.rationale or "",
        ]
        for approval in approvals
    ]
    header = ["approval", "state", "agent", "session", "tool", "age", "expires", "why"]
    call.screen.table(rows, header, spare=["expires", "age", "state", "session"])
    if any(state_of(approval, now_ms).text == "open" for approval in approvals):
        call.note("`weft approve ID` shows and allows one, `weft reject ID` refuses it")


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
