"""What waits for an agent or for a person: `weft inbox`, `interrupt`, `approvals`, `approve`
and `reject`; `human`, who is asked and answers; `follow`, which shows what happens in a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import orjson

from weft.kernel.typed_names import shell_word
from weft.ledger.api import (
    AnswerStarted,
    AttemptReset,
    MessageAdded,
    MessageQueued,
    MessageSettled,
    StreamItem,
    TextAdded,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnInterrupted,
    TurnParked,
    TurnStarted,
)
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_approvals, complete_messages
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import (
    KEY,
    acting,
    add_show,
    answer,
    changing,
    given,
    invoked,
    json_of,
    looking,
    named,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Screen, Span, local_time
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.work.approvals import (
    EVERY_STATE,
    NOTHING_WAITS,
    ULID_LETTERS,
    all_approvals,
    approval_lines,
    show_approvals,
    tool_requests,
    waiting_call,
)
from weft.surfaces.plain_text import cut
from weft.verbs.answers import InterruptedTurn

if TYPE_CHECKING:
    from weft.ledger.api import Approval, InboxMessage, Ledger
    from weft.programs.program_records import PersonRequest


# --- `weft inbox`: the messages that wait, and those that could not be answered.

PAGE_MESSAGES = 500
WORDS = 60
"""So many characters of a message are shown."""


@weft_command("inbox")
@click.option(
    "--dead", is_flag=True, help="List messages whose turn failed instead: with the error, and what can be done."
)
@arguments.session_option("Only those of this session.")
@click.option("--cancel", metavar="ID", shell_complete=complete_messages("queued"), help="Cancel a message that waits.")
@click.option(
    "--again",
    metavar="ID",
    shell_complete=complete_messages("dead"),
    help="Send a message again that is dead, or waits elsewhere.",
)
def inbox_command(call: Call, dead: bool, session: str | None, cancel: str | None, again: str | None) -> None:
    """List the messages that wait, and those that failed.

    They stand in the order in which each session answers them. A message is `taken` while a turn answers it, and gone
    from the list once it is answered. One whose turn failed is dead: it waits for a person, and stops nobody else. One
    that waits `elsewhere` was sent to the ledger that this one is a copy of, or that it came from.
    """
    if cancel is not None or again is not None:
        if (cancel is not None and again is not None) or dead or session:
            raise click.UsageError("--cancel and --again stand alone")
        _change(call, cancel, again)
        return
    with call.reading() as ledger:
        messages = list(_messages(ledger, session, ("dead",) if dead else ("queued", "taken")))
    if not dead:
        messages = _in_order(messages)
    if call.json:
        call.documents(messages)
    elif not messages:
        call.note("no message is dead" if dead else "no message waits; `weft inbox --dead` lists those that failed")
    elif dead:
        _show_dead(call, messages)
    else:
        _show_waiting(call, messages)


def _messages(ledger: Ledger, session: str | None, states: tuple[str, ...]) -> Iterator[InboxMessage]:
    after = 0
    while page := ledger.inbox.list(session=session, states=states, limit=PAGE_MESSAGES, after=after):
        yield from page
        after = page[-1].n


def _in_order(messages: list[InboxMessage]) -> list[InboxMessage]:
    """Session by session; within one, what a turn has, then the rest as it is answered."""
    first: dict[str, int] = {}
    for message in messages:
        first.setdefault(message.session_id, message.n)
    return sorted(
        messages,
        key=lambda message: (first[message.session_id], message.state == "queued", -message.priority, message.n),
    )


def _show_waiting(call: Call, messages: list[InboxMessage]) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(message.id, "id"),
            Span(message.session, "label"),
            Span("elsewhere" if message.is_elsewhere else message.state, "good" if message.state == "taken" else ""),
            message.mode,
            str(message.priority),
            message.sender,
            local_time(message.admitted_at),
            _message_words(message),
        ]
        for message in messages
    ]
    header = ["message", "session", "state", "queue", "priority", "sender", "since", "text"]
    call.screen.table(rows, header, numbers=["priority"], spare=["priority", "sender", "since", "queue"])
    elsewhere = next((message for message in messages if message.is_elsewhere), None)
    if elsewhere is not None:
        again = f"`weft inbox --again {shell_word(elsewhere.id)}`"
        call.note(f"what waits elsewhere is answered in the ledger that it was sent to; {again} sends it here, too")


def _show_dead(call: Call, messages: list[InboxMessage]) -> None:
    for message in messages:
        at = local_time(message.settled_at or message.admitted_at)
        call.screen.show(
            Span(message.id, "id"), " ", Span(message.session, "label"), f" {at}  {_message_words(message)}"
        )
        call.screen.show("  ", Span(message.error or "no error was told", "bad"))
        retry = f"; `weft retry {shell_word(message.turn)}` goes on from its turn" if message.turn else ""
        call.screen.show(Span(f"  `weft inbox --again {shell_word(message.id)}` sends it once more{retry}", "dim"))


def _message_words(message: InboxMessage) -> str:
    from weft.ledger.model import TextPart
    from weft.surfaces.plain_text import cut_at_word, safe

    texts = [str(part.text) for part in message.content if isinstance(part, TextPart)]
    return cut_at_word(safe(" ".join(" ".join(texts).split())), WORDS)


def _change(call: Call, cancel: str | None, again: str | None) -> None:
    with call.writing() as ledger:
        if cancel is not None:
            ledger.inbox.cancel(cancel, reason="cancelled by hand")
            message = ledger.inbox.get(cancel)
            call.answer(message, [Span(message.id, "id"), " is cancelled"])
            return
        admission = ledger.inbox.send_again(str(again))
        message = ledger.inbox.get(admission.message)
    call.answer(message, [Span(message.id, "id"), " waits in session ", Span(message.session, "label")])
    call.note(f"`weft inbox --session {shell_word(message.session)}` shows it; a broker answers it")


# --- `weft interrupt`: a turn that runs in any process is cut short.


@weft_command("interrupt")
@arguments.session()
def interrupt_command(call: Call, session: str) -> None:
    """Interrupt the turn that runs in a session.

    Whichever process runs it ends it with what it has: open tool calls are interrupted, what came of the answer is
    kept, and the session goes on from there. Messages that wait are answered next.

    A session where no turn runs says so.
    """
    with call.writing() as ledger:
        label = ledger.session(session).label
        turn = ledger.inbox.interrupt(label)
    call.answer(
        InterruptedTurn(session=label, turn=turn),
        ["turn ", Span(short(turn), "id"), " of ", Span(label, "label"), " was asked to stop"],
    )


# --- `weft follow`: what happens in a session, as it happens.


@weft_command("follow")
@arguments.session()
@click.option("--after", metavar="POSITION", help="Start after this position; 0 is the beginning.")
@click.option("--wait", type=float, metavar="SECONDS", help="End when nothing has come for SECONDS; 0 does not wait.")
def follow_command(call: Call, session: str, after: str | None, wait: float | None) -> None:
    """Follow a session: its messages, turns and tools, and answers while they are written.

    It begins with the turn that is under way, else with what comes next, and goes on until it is interrupted. With
    --after it goes on where somebody stopped, without gap or repetition. With --json every line is a record with its
    position.

    Where it is interrupted it says how to go on from there. An answer that is begun anew is announced: what was written
    of it before is void. docs/agents.md#following-a-session tells more.
    """
    from weft.surfaces.wire.forms import document, form

    position = after
    printer = StreamPrinter(call.screen)
    try:
        with call.reading() as ledger:
            for item in ledger.follow(session, after=after, wait=wait):
                if call.json:
                    click.echo(document(form(item), indent=False), color=True)
                else:
                    printer.show(item)
                position = str(item.position)
    except KeyboardInterrupt:  # how it ends
        pass
    printer.end_line()
    if position is not None and not call.json:
        call.note(f"`weft follow {shell_word(session)} --after {shell_word(str(position))}` goes on from here")


# --- A session that is followed, as a person reads it: answers grow where they stand.

SHOWN_CHARACTERS = 200
"""So much of a queued message, of arguments and of results is shown."""


class StreamPrinter:
    """Writes items one after another."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._kind = ""
        """Of the text at whose end the cursor stands; empty at the beginning of a line."""

    def show(self, item: StreamItem) -> None:
        if isinstance(item, TextAdded):
            self._write(item)
            return
        line = item_line(item)
        if line is not None:
            self.end_line()
            self._screen.show(*line)

    def end_line(self) -> None:
        if self._kind:
            click.echo()
        self._kind = ""

    def _write(self, item: TextAdded) -> None:
        """What a terminal would obey is written as an escape; line ends are line ends."""
        if self._kind != item.kind:
            self.end_line()
        self._kind = item.kind
        style = "dim" if item.kind == "thinking" else ""
        first, *more = item.text.split("\n")
        click.echo(self._screen.render([Span(first, style)]), nl=False, color=self._screen.color)
        for line in more:
            click.echo("\n" + self._screen.render([Span(line, style)]), nl=False, color=self._screen.color)


def item_line(item: StreamItem) -> Line | None:
    """The line of an item; None for what a person need not see."""
    line: Line | None = None
    match item:
        case MessageQueued():
            line = [Span("queued", "dim"), f" {item.sender}: {_short_text(item.text)}"]
        case MessageSettled():
            line = [Span(item.state, "bad"), f" message {item.message}", f": {item.reason}" if item.reason else ""]
        case TurnStarted():
            line = [Span("turn", "heading"), " ", Span(item.turn, "id"), f" of {item.actor}"]
        case MessageAdded():
            line = [Span(item.role, "user"), f" {_short_text(item.text)}"]
        case AnswerStarted():
            line = [Span("assistant", "assistant"), Span(f" {item.model}", "dim")]
        case AttemptReset():
            what = "it is asked again" if item.model else "what follows is another answer"
            line = [Span(f"the answer above is void ({item.reason}); {what}", "warn")]
        case ToolStarted():
            line = [Span("tool", "tool"), f" {item.tool} {_value(item.arguments)}"]
        case ToolFinished():
            outcome = item.error if item.error is not None else _value(item.result)
            line = [Span("tool", "tool"), f" {item.tool} {item.status}: {_short_text(outcome)}"]
        case TurnParked():
            until = f" until {item.until}" if item.until else ""
            line = [Span("parked", "warn"), f" {len(item.calls)} calls{until}", f": {item.why}" if item.why else ""]
        case TurnInterrupted():
            line = [Span("interrupted", "warn"), f" {item.reason}"]
        case TurnEnded():
            style = "good" if item.exit == "success" else "bad"
            line = [Span(f"ended: {item.exit}", style), f": {item.error}" if item.error else ""]
    return line


def _value(value: Any) -> str:
    return _short_text(value if isinstance(value, str) else orjson.dumps(value).decode())


def _short_text(text: str) -> str:
    return cut(" ".join(text.split()), SHOWN_CHARACTERS)


# --- `weft approvals`: the tool calls that wait for a person.


@weft_command("approvals")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--all", "is_every", is_flag=True, help="Also those that were answered.")
@arguments.session_option("Only those of this session.")
def approvals_command(call: Call, id: str | None, is_every: bool, session: str | None) -> None:
    """List the tool calls that wait for approval.

    With an ID that one is shown whole: what it would do, and exactly what would run. An approval allows that once, and
    nothing else: if anything of it changes before it runs, it does not run.

    A row is id, agent, session, tool, how long ago it was asked, until when it can be answered, and why. See
    docs/permissions.md#approvals.
    """
    from weft.kernel.clock import SystemClock

    if id is not None and (is_every or session is not None):
        raise click.UsageError("an ID stands alone")
    now_ms = SystemClock().now_ms()
    with call.reading() as ledger:
        if id is not None:
            approval = ledger.approvals.get(id)
            call.document(approval) if call.json else call.screen.page(approval_lines(approval, now_ms))
            return
        approvals = list(all_approvals(ledger, session, EVERY_STATE if is_every else EVERY_STATE[:1]))
    if call.json:
        call.documents(approvals)
    elif approvals:
        show_approvals(call, approvals, now_ms)
    else:
        call.note(
            "nobody was asked about a tool call" if is_every else f"{NOTHING_WAITS}; --all lists what was answered"
        )


# --- `weft approve`: a person allows a tool call.


@weft_command("approve")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--session-scope", is_flag=True, help="Also allow the same use of the tool in this session from now on.")
@click.option("--rule", is_flag=True, help="Allow it once, and propose a policy that allows it from then on.")
@click.option("--reason", metavar="TEXT", help="Why.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where nobody is at a terminal.")
def approve_command(call: Call, id: str | None, session_scope: bool, rule: bool, reason: str | None, yes: bool) -> None:
    """Approve a tool call that waits for a person.

    The call is shown in full first, and you are asked. The answer counts for exactly what was shown, once: if anything
    of it changes before it runs, it does not run. Without ID what waits is listed, and nothing is allowed.

    Where nobody is at a terminal nothing is allowed without --yes. Another person than the ledger's owner answers with
    `weft human approve`, or is named with `weft --as NAME approve`.
    """
    from weft.surfaces.cli.work.approvals import ApprovalAnswer, decide, named_approval

    if session_scope and rule:
        raise click.UsageError("--session-scope and --rule exclude each other")
    scope = "session" if session_scope else "rule" if rule else "once"
    with call.writing() as ledger:
        approval = named_approval(call, ledger, id)
        decide(call, ledger, approval, ApprovalAnswer(is_granted=True, scope=scope, reason=reason), is_sure=yes)


# --- `weft reject`: a person refuses a tool call.


@weft_command("reject")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--abort", is_flag=True, help="End the agent's turn, too.")
@click.option("--reason", metavar="TEXT", help="Why; the model is told.")
def reject_command(call: Call, id: str | None, abort: bool, reason: str | None) -> None:
    """Reject a tool call that waits for a person.

    It never runs. The model is told so and goes on; with --abort its turn ends. Without ID what waits is listed.
    """
    from weft.surfaces.cli.work.approvals import ApprovalAnswer, decide, named_approval

    with call.writing() as ledger:
        approval = named_approval(call, ledger, id)
        decide(call, ledger, approval, ApprovalAnswer(is_granted=False, abort=abort, reason=reason), is_sure=True)


# --- `weft human`: people, what they are asked and what they answer.

human_command = group(
    "human",
    """Manage people: describe them, ask them, record their answers.

    Only the person who was asked can answer, with the permission approve: `weft human approve NAME REQUEST`, where
    REQUEST is the end of its id as `weft human requests` shows it.
    """,
)
MAKE = "make one with `weft human create NAME`"
YES = "Do not ask about a tool call; needed where nobody is at a terminal."
STYLES = {"approved": "good", "rejected": "bad", "pending": "warn"}


@human_command.verb("create")
@click.argument("name")
@click.option("--name", "--display-name", "display_name", metavar="TEXT", help="What they are called.")
@click.option(
    "--permission",
    "permissions",
    metavar="RIGHT",
    multiple=True,
    help="approve, assign, configure, or such as session:read(LABEL) or machine:folder(/srv/*).",
)
@click.option("--channel", metavar="NAME", help="How they are told: terminal, command or webhook.")
@set_fields
@acting
def create(
    call: Call,
    name: str,
    display_name: str | None,
    permissions: tuple[str, ...],
    channel: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a person."""
    preferences = None if channel is None else {"notificationChannel": channel}
    config = given(name=display_name, preferences=preferences)
    config = with_fields({**config, "permissions": list(permissions)}, fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("human", name, config, key=retry_key))


@human_command.verb("list")
def list_(call: Call) -> None:
    """List people."""
    with looking(call) as programs:
        show_list(call, programs.all("human"), "person", MAKE)


add_show(human_command, "human")


@human_command.verb("invite")
@named("name", "human")
@click.option(
    "--url",
    metavar="URL",
    default="http://127.0.0.1:8420",
    help="Where the server is reached. Default: http://127.0.0.1:8420.",
)
def invite(call: Call, name: str, url: str) -> None:
    """Let a person choose a password for the server.

    The link that is printed counts once, for three days. Whoever has it signs in as that person from then on, to every
    `weft serve` of this ledger, and whoever did before is signed out. Give it to nobody else.
    """
    from weft.programs.accounts import Accounts
    from weft.verbs.answers import InvitedPerson

    call.ensure_owner("human invite")
    with call.writing() as ledger:
        link = Accounts(ledger).invite(name)
    invited = InvitedPerson(person=name, url=link.url(url), expires_at=link.expires_ms)
    call.answer(invited, [invited.url])
    call.note(f"{name} chooses a password there, until {local_time(link.expires_ms)}")


@human_command.verb("presence")
@named("name", "human")
@click.argument("presence", type=click.Choice(["available", "busy", "away", "offline"]))
@acting
def presence(call: Call, name: str, presence: str, actor: str, retry_key: str | None) -> None:
    """Set a person's presence."""
    with changing(call, actor) as programs:
        answer(call, programs.set_presence(name, presence, key=retry_key))


def _add_message_verb(verb: str, asks: bool, help: str) -> None:
    @named("name", "human")
    @click.argument("text")
    @click.option("--about", metavar="PROGRAM", help="The program that it is about.")
    @click.option("--data", metavar="JSON", help="Data that goes with it.")
    @acting
    def send_message(
        call: Call, name: str, text: str, about: str | None, data: str | None, actor: str, retry_key: str | None
    ) -> None:
        from msgspec import UNSET

        from weft.runtime.invoke.invocation import Invocation

        with looking(call) as programs:
            human = programs.get(name, "human")
        more = UNSET if data is None else json_of(data, "data")
        asked = Invocation(message=text, input=more, asks=asks, about=about, key=retry_key)
        request = invoked(call, actor, human.id, asked).result["request"]
        with looking(call) as programs:
            _show_request(call, programs.request(request))

    send_message.__doc__ = help
    human_command.verb(verb)(send_message)


_add_message_verb(
    "notify",
    False,
    """Tell a person something, by the channel that they prefer.

    What cannot be brought to them is kept.
    """,
)
_add_message_verb("ask", True, "Ask a person for a decision; it waits until they approve or reject it.")


@human_command.verb("requests")
@named("name", "human", required=False)
@click.option("--status", metavar="STATE", help="pending, approved, rejected or told.")
def requests(call: Call, name: str | None, status: str | None) -> None:
    """List what people were told and asked."""
    with looking(call) as programs:
        requests_listed = programs.requests(name, status=status)
        requests_listed += tool_requests(programs, name, status)
        requests_listed.sort(key=lambda request: request.asked_at)
    if call.json:
        call.documents(requests_listed)
    elif requests_listed:
        rows = [
            (Span(_short_request_id(request), "id"), request.human,
             Span(_status(request), STYLES.get(request.status, "")), local_time(request.asked_at), request.text or "")
            for request in requests_listed
        ]  # fmt: skip
        call.screen.table(rows, ("request", "person", "status", "asked", "what"))
    else:
        call.note("nobody was asked anything; ask with `weft human ask NAME TEXT`")


def _short_request_id(request: PersonRequest) -> str:
    """As much of an id as is typed: the end of one, of a tool call's request the beginning."""
    return request.id[:12] if len(request.id) > ULID_LETTERS else request.id[-8:]


def _status(request: PersonRequest) -> str:
    """With what another ledger says was answered, where nobody here has taken that over."""
    return (
        request.status if request.pending_answer is None else f"{request.status} ({request.pending_answer} elsewhere)"
    )


def _answer(verb: str, help: str) -> None:
    @named("name", "human")
    @click.argument("request")
    @click.option("--reason", metavar="TEXT", help="Why.")
    @click.option("--key", "retry_key", metavar="KEY", help=KEY)
    def decide(
        call: Call, name: str, request: str, reason: str | None, retry_key: str | None, yes: bool = False
    ) -> None:
        with changing(call, name) as programs:
            if (approval := waiting_call(programs, request)) is not None:
                _answer_call(call, programs.ledger, approval, verb, reason, is_sure=yes)
                return
            chosen = programs.approve if verb == "approve" else programs.reject
            _show_request(call, chosen(request, reason=reason, key=retry_key))

    decide.__doc__ = help
    if verb == "approve":
        decide = click.option("-y", "--yes", is_flag=True, help=YES)(decide)
    human_command.verb(verb)(decide)


_answer(
    "approve",
    """Approve what a person was asked, as that person.

    It is for what `weft human ask` asked. A tool call that waits is answered with `weft approve`.
    """,
)
_answer(
    "reject",
    """Reject what a person was asked, as that person.

    It is for what `weft human ask` asked. A tool call that waits is answered with `weft reject`.
    """,
)


def _answer_call(
    call: Call, ledger: Ledger, approval: Approval, verb: str, reason: str | None, *, is_sure: bool
) -> None:
    """The same request that `weft approve` and `weft reject` answer."""
    from weft.surfaces.cli.work.approvals import ApprovalAnswer, decide

    decide(call, ledger, approval, ApprovalAnswer(is_granted=verb == "approve", reason=reason), is_sure=is_sure)


def _show_request(call: Call, request: PersonRequest) -> None:
    call.answer(
        request,
        [
            "request ",
            Span(_short_request_id(request), "id"),
            " is ",
            Span(request.status, STYLES.get(request.status, "")),
        ],
    )
