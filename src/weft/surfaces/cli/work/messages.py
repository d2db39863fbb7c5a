"""What waits for an agent or for a person: `weft inbox`, `interrupt`, `approvals`, `approve`
and `reject`; `human`, who is asked and answers; `follow`, which shows what happens in a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

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
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import (
    KEY,
    acting,
    changing,
    invoked,
    json_of,
    line_of,
    looking,
    named,
    show_list,
    show_program,
)
from weft.surfaces.cli.screen import Line, Screen, Span, local_time
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.verb_commands import asks_first, command_of, shows
from weft.surfaces.cli.work.approvals import (
    NOTHING_WAITS,
    ULID_LETTERS,
    approval_lines,
    ask_shown,
    named_approval,
    show_answered,
    show_approvals,
    tool_requests,
    waiting_call,
)
from weft.surfaces.plain_text import cut
from weft.verbs import agent_verbs, message_verbs
from weft.verbs.answers import InterruptedTurn, Listing
from weft.verbs.declaration import opt

if TYPE_CHECKING:
    from weft.ledger.api import Approval, InboxMessage, Ledger
    from weft.programs.program_records import PersonRequest, Program


# --- `weft inbox`: the messages that wait, and those that could not be answered.

WORDS = 60
"""So many characters of a message are shown."""


@shows(message_verbs.inbox)
def show_inbox(call: Call, answer: Listing[InboxMessage] | InboxMessage, dead: bool, again: str | None) -> None:
    if not isinstance(answer, Listing):
        if again is None:
            call.screen.show(Span(answer.id, "id"), " is cancelled")
            return
        call.screen.show(Span(answer.id, "id"), " waits in session ", Span(answer.session, "label"))
        call.note(f"`weft inbox --session {shell_word(answer.session)}` shows it; a broker answers it")
        return
    if not answer.items:
        call.note("no message is dead" if dead else "no message waits; `weft inbox --dead` lists those that failed")
    elif dead:
        _show_dead(call, answer.items)
    else:
        _show_waiting(call, answer.items)
    call.next_page(answer.next)


def _show_waiting(call: Call, messages: Sequence[InboxMessage]) -> None:
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


def _show_dead(call: Call, messages: Sequence[InboxMessage]) -> None:
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


@shows(message_verbs.interrupt)
def show_interrupted(call: Call, interrupted: InterruptedTurn) -> None:
    turn, session = Span(short(interrupted.turn), "id"), Span(interrupted.session, "label")
    call.screen.show("turn ", turn, " of ", session, " was asked to stop")


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


@shows(message_verbs.approvals)
def show_requests(call: Call, answer: Listing[Approval] | Approval, every: bool) -> None:
    from weft.kernel.clock import SystemClock

    now_ms = SystemClock().now_ms()
    if not isinstance(answer, Listing):
        call.screen.page(approval_lines(answer, now_ms))
    elif answer.items:
        show_approvals(call, answer.items, now_ms)
        call.next_page(answer.next)
    else:
        call.note("nobody was asked about a tool call" if every else f"{NOTHING_WAITS}; --all lists what was answered")


# --- `weft approve` and `weft reject`: a person allows a tool call, or refuses it.

shows(message_verbs.approve, message_verbs.reject)(show_answered)


@asks_first(message_verbs.approve)
def ask_to_approve(
    call: Call,
    ledger: Ledger,
    id: str | None,
    yes: Annotated[bool, opt("Do not ask; needed where nobody is at a terminal.", "-y", "--yes")] = False,
) -> None:
    ask_shown(call, named_approval(call, ledger, id), is_granted=True, is_sure=yes)


@asks_first(message_verbs.reject)
def show_what_is_rejected(call: Call, ledger: Ledger, id: str | None) -> None:
    ask_shown(call, named_approval(call, ledger, id), is_granted=False, is_sure=True)


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


@shows(agent_verbs.human_create, agent_verbs.human_presence)
def show_changed_person(call: Call, person: Program) -> None:
    call.screen.show(*line_of(person))


@shows(agent_verbs.human_list)
def show_people(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "person", MAKE)


shows(agent_verbs.human_show)(show_program)
for human_verb in (agent_verbs.human_create, agent_verbs.human_list, agent_verbs.human_show):
    human_command.add_command(command_of(human_verb))


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


human_command.add_command(command_of(agent_verbs.human_presence))


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
