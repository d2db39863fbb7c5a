"""One person in a room at a terminal or in a pipe: what they say is posted and answered,
what they command is done; keys, drawings and signals of one sitting. What a room's items change on
a screen, and a room that is followed as lines or records.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click
from msgspec import Struct

from weft.chat.room_stream import (
    MentionSuggester,
    RoomAnswerEnded,
    RoomAnswerText,
    RoomApprovalAsked,
    RoomFollowingEnded,
    RoomItem,
    RoomMessageAdded,
    RoomParticipantChanged,
    RoomStateChanged,
    Suggestion,
    follow_room,
)
from weft.chat.triage import answer_pending
from weft.kernel.errors import NotApplicable, WeftError
from weft.kernel.message_text import shown_name, write_typed_mentions
from weft.ledger.api import Participant
from weft.runtime.broker.broker import to_the_end
from weft.runtime.invoke.handlers import MentionNotices
from weft.surfaces.cli.chat import terminal
from weft.surfaces.cli.chat.rooms import (
    INDENT,
    addressees,
    member_line,
    message_lines,
    name_style,
    plain_text,
    room_name,
)
from weft.surfaces.cli.chat.typed_input import Command, Edit, KeyReader, LineEditor, TypedMessage, Unknown, read_typed
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Screen, Span, terminal_size
from weft.surfaces.cli.work.approvals import NO, YES
from weft.surfaces.plain_text import cut, safe, safe_lines, width, wrapped
from weft.surfaces.wire.forms import document, form
from weft.verbs.message_verbs import room_member

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.ledger.api import Participant, PostedMessage, Room, RoomMessage
    from weft.surfaces.cli.command_line import Call
    from weft.surfaces.cli.work.broker_call import BrokerAccess
    from weft.verbs.program_answers import RoomMember


# --- What is shown of a room that is followed: what was said, for good, and answers while they are being written.

DRAWN_CHARACTERS = 4000
"""At most so much of the end of an answer is looked at for drawing it."""
ENDS = {
    "left": "you left this room",
    "removed": "you take part in this room no longer",
    "gone": "this room can be read no longer",
}


class WrittenAnswer(Struct):
    """An answer that is being written."""

    name: str
    text: str


class RoomView:
    """Takes the items of a room's stream and says what they change on the screen."""

    def __init__(self) -> None:
        self.position = 0
        self.participants: dict[str, Participant] = {}
        """By node, those who take part."""
        self._names: dict[str, str] = {}
        self._answers: dict[str, WrittenAnswer] = {}
        """By turn, in the order in which they began."""

    def take(self, item: RoomItem) -> list[Line]:
        """The lines that an item adds for good."""
        self.position = item.position
        match item:
            case RoomMessageAdded(message=message):
                self._answers.pop(message.meta.get("turn") or "", None)
                return message_lines(message, self._names)
            case RoomAnswerText():
                answer = self._answers.setdefault(item.turn, WrittenAnswer(item.name, ""))
                answer.text = answer.text[: item.start] + item.text
            case RoomAnswerEnded():
                self._answers.pop(item.turn, None)
            case RoomParticipantChanged(participant=participant):
                self._change(participant)
            case RoomStateChanged():
                return [[Span(self._state(item), "dim")]]
            case RoomFollowingEnded():
                self._answers.clear()
                return [[Span(ENDS[item.reason], "warn")]]
        return []

    def _change(self, participant: Participant) -> None:
        self._names[participant.node] = participant.name
        if participant.is_removed:
            self.participants.pop(participant.node, None)
        else:
            self.participants[participant.node] = participant

    def _state(self, item: RoomStateChanged) -> str:
        return "the room is archived" if item.status == "archived" else f"the room is {item.title or 'without a title'}"

    def drawn_lines(self, screen: Screen, columns: int, rows: int) -> list[str]:
        """Answers that are being written and who thinks, in at most so many rows; each row is narrower than the
        screen."""
        thinking = self.thinking
        if thinking:
            rows -= 1
        share = max(1, rows // max(1, len(self._answers)))
        lines = [
            line for answer in self._answers.values() for line in self._answer_lines(screen, answer, columns, share)
        ]
        lines = lines[-max(1, rows) :]
        if thinking:
            lines.append(
                screen.render([Span(cut(safe(f"{', '.join(map(shown_name, thinking))} …"), columns - 1), "dim")])
            )
        return lines

    @property
    def thinking(self) -> list[str]:
        """Who has something to answer and has said nothing yet."""
        writing = {answer.name for answer in self._answers.values()}
        return [
            participant.name
            for participant in self.participants.values()
            if participant.status == "thinking" and participant.name not in writing
        ]

    def _answer_lines(self, screen: Screen, answer: WrittenAnswer, columns: int, rows: int) -> Iterator[str]:
        """The name and the end of the text, one beside the other where that fits."""
        text = "\n".join(safe_lines(plain_text(answer.text[-DRAWN_CHARACTERS:], self._names)))
        name = cut(safe(shown_name(answer.name)), columns // 2)
        room = max(1, columns - width(name) - 4)
        lines = wrapped(text, room)[-rows:] or [""]
        for number, line in enumerate(lines):
            lead = Span(f"{name} ", name_style(answer.name)) if number == 0 else " " * (width(name) + 1)
            yield screen.render([lead, Span("│ ", "line"), Span(cut(line, room), "dim")])


# --- A room that is followed, as a person or a program reads it: lines on a terminal or in a pipe, records as JSON.


class RoomPrinter:
    """Writes items one after another. On a terminal answers grow below what was said; in a pipe a line says who is
    answering, and an answer comes when it is posted."""

    def __init__(self, call: Call) -> None:
        self._call, self._view = call, RoomView()
        self._bottom = BottomLines(write) if can_draw() and not call.json else None
        self.position = 0
        """Of the last message that was told."""
        self.is_ended = False

    def show(self, item: RoomItem) -> None:
        self.position = item.position
        self.is_ended = isinstance(item, RoomFollowingEnded)
        if self._call.json:
            click.echo(document(form(item), indent=False), color=True)
            return
        before = self._view.thinking
        lines = self._view.take(item)
        if isinstance(item, RoomApprovalAsked):
            lines = [[INDENT, Span(f"{item.name} waits for a person: `weft approvals` shows what for", "warn")]]
        if self._bottom is None:
            self._print(lines)
            for name in self._view.thinking:
                if name not in before:
                    self._print([[INDENT, Span(f"{name} is answering", "dim")]])
            return
        columns, rows = terminal_size()
        drawn = self._view.drawn_lines(self._call.screen, columns, max(2, rows // 2))
        drawing = Drawing(drawn, max(0, len(drawn) - 1), 0)
        if lines:
            self._bottom.above([self._call.screen.render(line) for line in lines], drawing)
        else:
            self._bottom.draw(drawing)

    def _print(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._call.screen.show(*line)

    def close(self) -> None:
        if self._bottom is not None:
            self._bottom.erase()


# --- The last lines of a terminal, which are drawn again and again: answers that are being written, and the line that
# a person types.


class Drawing(NamedTuple):
    """Lines, and the row and column of them where the cursor stands."""

    lines: Sequence[str]
    row: int
    column: int


class BottomLines:
    """`write` sends text to the terminal. No line that is drawn is as wide as the screen, so the terminal breaks
    none."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: list[str] = []
        self._row = self._column = 0
        """Where the cursor stands within the lines."""

    @property
    def is_drawn(self) -> bool:
        """Whether anything stands there."""
        return bool(self._lines)

    def draw(self, drawing: Drawing) -> None:
        """Another drawing takes the place of what is there."""
        if (list(drawing.lines), drawing.row, drawing.column) != (self._lines, self._row, self._column):
            self._write(self._erased() + self._drawn_lines(*drawing))

    def above(self, texts: Sequence[str], drawing: Drawing | None = None) -> None:
        """Write lines for good; below them stands the other drawing from then on, or what is drawn."""
        below = drawing or Drawing(self._lines, self._row, self._column)
        finished_lines = "".join(f"{text}\n" for text in texts)
        self._write(self._erased() + finished_lines + self._drawn_lines(*below))

    def redraw(self) -> None:
        """On a screen that something else wrote to."""
        lines, row, column = self._lines, self._row, self._column
        self._write("\x1b[H\x1b[2J" + self._drawn_lines(lines, row, column))

    def erase(self) -> None:
        self._write(self._erased())

    def _erased(self) -> str:
        up = f"\x1b[{self._row}A" if self._row else ""
        self._lines, self._row, self._column = [], 0, 0
        return f"{up}\r\x1b[J"

    def _drawn_lines(self, lines: Sequence[str], row: int, column: int) -> str:
        self._lines, self._row, self._column = list(lines), row, column
        up = f"\x1b[{len(lines) - 1 - row}A" if len(lines) - 1 > row else ""
        right = f"\x1b[{column}C" if column else ""
        return "\n".join(lines) + up + "\r" + right


# --- A terminal that hands every key over as it is pressed, and is afterwards what it was.

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


def can_draw() -> bool:
    """Whether somebody sits at a terminal that lines can be drawn on again."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


@contextmanager
def reading_keys(file: int) -> Iterator[Callable[[], None]]:
    """Keys are neither echoed nor gathered into lines, and Ctrl-C is a key; Ctrl-Z and Ctrl-\\ do what they always do.
    Gives a function that makes it so once more, after a shell had the terminal."""
    before = termios.tcgetattr(file)
    mode = termios.tcgetattr(file)
    mode[0] &= ~(termios.ICRNL | termios.IXON)
    mode[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    mode[6][termios.VINTR] = os.fpathconf(file, "PC_VDISABLE").to_bytes(1, "big")
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0

    def set_mode() -> None:
        termios.tcsetattr(file, termios.TCSADRAIN, mode)
        write(BRACKETED_PASTE_ON)

    set_mode()
    try:
        yield set_mode
    finally:
        write(BRACKETED_PASTE_OFF)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# --- A room at a terminal: what was said scrolls up, answers that are being written and the line that is typed stay
# below.

DRAW_SECONDS = 0.03
"""So far apart are drawings that answers cause."""
READ_BYTES = 65536
TITLE_COLUMNS = 30


class RoomTerminal:
    """One sitting in a room, from the first prompt to the last."""

    def __init__(self, call: Call, access: BrokerAccess, mirror: AsyncLedger) -> None:
        """`call` is the one that the broker tells its notes to."""
        self._call, self._access = call, access
        self._talk = RoomTalk(access, mirror, self._show, self._draw_soon)
        self._editor = LineEditor(self._talk.completions)
        self._bottom = BottomLines(write)
        self._keys = KeyReader()
        self._submitted_lines: asyncio.Queue[str] = asyncio.Queue()
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._asked_to_close = False

    async def run(self, room: str) -> None:
        loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
        prompts = self._access.prompts
        prompts.show = self._show
        self._call.on_note = lambda line: self._show([line])
        with reading_keys(file) as read_keys, prompts.answered_here():
            loop.add_reader(file, self._read, file)
            loop.add_signal_handler(signal.SIGWINCH, self._redraw)
            loop.add_signal_handler(signal.SIGCONT, self._go_on, read_keys)
            try:
                await self._talk.enter(room)
                self._draw()
                await self._work()
            finally:
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    loop.remove_signal_handler(number)
                loop.remove_reader(file)
                if self._timer is not None:
                    self._timer.cancel()
                self._bottom.erase()
                prompts.show, self._call.on_note = None, None

    async def _work(self) -> None:
        """Follow the room and do what is typed, until one of them ends."""
        tasks = [asyncio.ensure_future(work) for work in (self._talk.follow(), self._hear_all(), self._over.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._talk.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear_all(self) -> None:
        while True:
            await self._talk.handle_input(await self._submitted_lines.get())
            if self._talk.is_over:
                self._over.set()

    # --- keys ----------------------------------------------------------------------------------------------------

    def _read(self, file: int) -> None:
        try:
            data = os.read(file, READ_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(file)
            self._over.set()
            return
        for key in self._keys.feed(data):
            edit = self._editor.press(key)
            self._asked_to_close = self._asked_to_close and edit is Edit.END
            match edit:
                case Edit.SUBMIT:
                    self._submitted_lines.put_nowait(self._editor.take())
                case Edit.INTERRUPT:
                    self._interrupt()
                case Edit.END:
                    self._close()
                case Edit.REDRAW:
                    self._bottom.redraw()
        self._draw()

    def _interrupt(self) -> None:
        """Ctrl-C drops the line; on an empty one it cuts answers short."""
        if self._editor.text:
            self._editor.clear()
        elif not self._talk.is_answering:
            self._show([[Span("nothing is being answered to you; Ctrl-D closes this", "dim")]])
        elif self._interrupting is None or self._interrupting.done():
            self._interrupting = asyncio.ensure_future(self._interrupted())

    async def _interrupted(self) -> None:
        if await self._talk.interrupt():
            self._show([[Span("interrupted; what had come is kept", "warn")]])

    def _close(self) -> None:
        if self._talk.is_answering and not self._asked_to_close:
            self._asked_to_close = True
            self._show([[Span("you are being answered; Ctrl-D again cuts that short and closes this", "warn")]])
        else:
            self._over.set()

    # --- drawing -------------------------------------------------------------------------------------------------

    def _show(self, lines: Sequence[Line]) -> None:
        """What is drawn below is as new as the lines: an answer that was posted is drawn there no longer."""
        drawing = self._drawing() if self._bottom.is_drawn else None
        self._bottom.above([self._call.screen.render(line) for line in lines], drawing)

    def _draw_soon(self) -> None:
        if self._talk.is_over:
            self._over.set()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DRAW_SECONDS, self._draw)

    def _go_on(self, read_keys: Callable[[], None]) -> None:
        """After Ctrl-Z and `fg`."""
        read_keys()
        self._redraw()

    def _redraw(self) -> None:
        self._bottom.erase()
        self._draw()

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._bottom.draw(self._drawing())

    def _drawing(self) -> Drawing:
        columns, rows = terminal_size()
        screen = self._call.screen
        lines = self._talk.view.drawn_lines(screen, columns, max(2, rows // 2))
        if self._editor.completions:
            lines.append(self._completion_line(columns))
        prompt = f"{safe(cut(self._talk.title, TITLE_COLUMNS))}> "
        text, column = self._editor.shown(max(8, columns - width(prompt) - 1))
        lines.append(screen.render([Span(prompt, "label"), text]))
        return Drawing(lines, len(lines) - 1, width(prompt) + column)

    def _completion_line(self, columns: int) -> str:
        chosen, room = self._editor.chosen, columns - 1
        spans: list[Span | str] = []
        for word in self._editor.completions:
            shown = safe(word.strip())
            if width(shown) + 2 > room:
                break
            room -= width(shown) + 2
            spans += [Span(shown, "label" if word == chosen else "dim"), "  "]
        return self._call.screen.render(spans)


async def run_piped(call: Call, access: BrokerAccess, mirror: AsyncLedger, room: str) -> None:
    """Without a terminal: each line that comes in is said or done, and waited for, before the next one."""

    def show(lines: Sequence[Line]) -> None:
        for line in lines:
            call.screen.show(*line)

    talk = RoomTalk(access, mirror, show, lambda: None)
    await talk.enter(room)
    following = asyncio.ensure_future(talk.follow())
    try:
        while not talk.is_over and not following.done():
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                break
            await talk.handle_input(line.rstrip("\n"))
            await talk.settled()
        if following.done():
            following.result()
    finally:
        await talk.close()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


# --- One person in a room: what they say is posted and answered in this process, what they command is done.

T = TypeVar("T")
Show = Callable[[Sequence[Line]], None]
HINT = "/help lists the commands, Tab completes @names. Ctrl-C stops answers, Ctrl-D closes this."
SUGGESTIONS = 30
"""So many names are looked at for completing one."""
SHOWN_MESSAGES, MOST_UNREAD, READ_BEFORE = 10, 200, 5
"""So many messages are shown at the beginning; at most so many where some are unread, with so many before these."""


class RoomTalk:
    """`show` puts lines on the screen for good, `on_change` hears that what is drawn below them may have changed."""

    def __init__(self, access: BrokerAccess, mirror: AsyncLedger, show: Show, on_change: Callable[[], None]) -> None:
        """`mirror` is the ledger in the name of the person; turns run in the name of whoever opened it."""
        self._access, self._mirror, self._ledger = access, mirror, mirror.sync
        self._show, self._on_change = show, on_change
        access.prompts.answer_as(self._ledger)
        self.view = RoomView()
        self.title = self._room = ""
        self.is_over = False
        self._suggester = MentionSuggester(self._ledger)
        self._answers: set[asyncio.Task[None]] = set()
        self._mentions: MentionNotices | None = None
        self._read = 0
        self._changed = asyncio.Event()
        """Set with every item of the room."""
        self._do: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "who": self._who,
            "add": partial(self._change, "add", "say which agent"),
            "invite": partial(self._change, "invite", "say whom"),
            "remove": partial(self._change, "remove", "say whom"),
            "title": partial(self._change, "retitle", "say which title"),
            "read": self._read_again,
            "approve": self._approve,
            "reject": self._reject,
            "interrupt": self._interrupt,
            "leave": self._leave,
            "quit": self._quit,
        }

    async def _across(self, call: Callable[[], T]) -> T:
        return await self._access.mirror.crossing.run(call)

    # --- what is heard -------------------------------------------------------------------------------------------

    async def enter(self, name: str) -> None:
        """Show where the person is, and what they have not read; the last message that is shown is the position that
        the room is followed from."""
        rooms, people = self._ledger.rooms, self._access.people
        self._mentions = await self._across(lambda: MentionNotices(people, self._show_untold))
        room: Room = await self._across(partial(rooms.get, name))
        limit = MOST_UNREAD if room.unread else SHOWN_MESSAGES
        messages: list[RoomMessage] = await self._across(partial(rooms.messages, room.id, limit=limit))
        participants: list[Participant] = await self._across(partial(rooms.participants, room.id))
        self._room, self.title = room.id, room_name(room)
        self.view.position = messages[-1].position if messages else room.position
        names = await self._names()
        self._show([_head_line(room, participants), [Span(HINT, "dim")]])
        first_unread = _first_unread(messages, room.unread, self._ledger.authority.principal.id)
        for message in _shown_at_first(messages, first_unread):
            if message.position == first_unread:
                self._show([[Span("unread:", "warn")]])
            self._show(message_lines(message, names))
        await self._mark_read()

    async def follow(self) -> None:
        """Show what happens, until the person takes part no longer or closes this."""
        async for item in follow_room(self._mirror, self._room, after=self.view.position):
            if lines := self.view.take(item):
                self._show(lines)
            if isinstance(item, RoomStateChanged) and item.title:
                self.title = item.title
            if isinstance(item, RoomApprovalAsked):
                self._access.prompts.asked_elsewhere(item.approval)
            self.is_over = self.is_over or isinstance(item, RoomFollowingEnded)
            self._changed.set()
            self._on_change()

    async def _names(self) -> dict[str, str]:
        """Who takes or took part, by id."""
        participants = await self._across(partial(self._ledger.rooms.participants, self._room, removed=True))
        return {participant.node: participant.name for participant in participants}

    def completions(self, before: str) -> Sequence[str]:
        return room_completions(before, self._suggested)

    def _suggested(self, letters: str) -> Sequence[Suggestion]:
        try:
            return self._suggester.suggest(self._room, letters, SUGGESTIONS)
        except WeftError:  # the person takes part no longer, which the room's stream tells
            return ()

    # --- what is said --------------------------------------------------------------------------------------------

    async def handle_input(self, text: str) -> None:
        """Post a message and begin to have it answered, or do what a command says."""
        try:
            if self._access.prompts.take(text):
                return
            match read_typed(text.split("\n"), ROOM_COMMANDS):
                case TypedMessage(words):
                    await self._say(words)
                case Command(name, argument):
                    await self._do[name](argument)
                case Unknown(name, near):
                    meant = f"did you mean /{near}?" if near else "/help lists what there is"
                    self._show([[Span(f"there is no command /{name}; {meant}", "warn")]])
        except WeftError as error:
            self._show(list(terminal.failure(error)))

    async def _say(self, words: str) -> None:
        others = await self._across(partial(addressees, self._ledger, self._room)) if "@" in words else []
        typed = write_typed_mentions(words, others)
        for name in (*typed.unknown, *typed.ambiguous):
            whether = "several are" if name in typed.ambiguous else "nobody is"
            self._show([[Span(f"{whether} called {name!r}: @{name} stays text", "warn")]])
        post = partial(self._ledger.rooms.post, self._room, typed.text)
        posted: PostedMessage = await to_the_end(self._across(post))
        await self._mark_read()
        await self._tell_mentioned()
        if posted.reached:
            task = asyncio.ensure_future(self._have_answered(posted))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _have_answered(self, posted: PostedMessage) -> None:
        access = self._access
        failures = await answer_pending(
            access.mirror,
            self._ledger,
            posted,
            access.planner,
            on_message=lambda _: None,  # the room's stream shows it
        )
        await self._tell_mentioned()
        for failure in failures:
            self._show(list(terminal.failure(failure.error))[1:])

    async def _tell_mentioned(self) -> None:
        if self._mentions is not None:
            await self._mentions.tell_new()

    def _show_untold(self, person: str, error: Exception) -> None:
        self._show([[Span(f"{person} was not told of being mentioned: {error}", "warn")]])

    @property
    def is_answering(self) -> bool:
        return bool(self._answers)

    async def settled(self) -> None:
        """Wait until everything that was said is answered and shown."""
        while self._answers:
            await asyncio.wait(self._answers)
        newest = (await self._across(partial(self._ledger.rooms.get, self._room))).position
        while not self.is_over and self.view.position < newest:
            self._changed.clear()
            await self._changed.wait()

    async def interrupt(self) -> bool:
        """Cut short what is being answered to this person; whether anything was."""
        tasks = set(self._answers)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return bool(tasks)

    async def _mark_read(self) -> None:
        if self.view.position > self._read:
            self._read = self.view.position
            await self._across(partial(self._ledger.rooms.mark_read, self._room, self._read))

    async def close(self) -> None:
        """What is being answered is cut short; what was shown is read."""
        await self.interrupt()
        if not self.is_over:
            await self._mark_read()

    # --- commands ------------------------------------------------------------------------------------------------

    async def _help(self, _: str) -> None:
        lines: list[Line] = [
            [Span(f"/{name} {takes}".ljust(18), "label"), what] for name, (takes, what) in ROOM_COMMANDS.items()
        ]
        lines.append(['@name mentions somebody, @"two words" somebody whose name has spaces.'])
        lines.append(['A line that ends with \\ goes on in the next one; """ begins and ends a text of several lines.'])
        lines.append(["A message that begins with a slash is written with two."])
        self._show(lines)

    async def _who(self, _: str) -> None:
        def members() -> list[RoomMember]:
            participants = self._ledger.rooms.participants(self._room)
            return [room_member(self._ledger, participant) for participant in participants]

        self._show([member_line(member) for member in await self._across(members)])

    async def _change(self, verb: str, question: str, argument: str) -> None:
        """A verb of rooms that takes one name; the room itself says what came of it."""
        if not argument:
            raise NotApplicable(question, "/help shows what it takes")
        rooms = self._ledger.rooms
        verbs = {"add": rooms.add, "invite": rooms.invite, "remove": rooms.remove, "retitle": rooms.retitle}
        await self._across(partial(verbs[verb], self._room, argument.removeprefix("@").strip('"')))

    async def _read_again(self, count: str) -> None:
        if count and not count.isdecimal():
            raise NotApplicable("say how many messages", "/read 20")
        limit = min(int(count or SHOWN_MESSAGES), 1000) or 1
        messages = await self._across(partial(self._ledger.rooms.messages, self._room, limit=limit))
        names = await self._names()
        for message in messages:
            self._show(message_lines(message, names))

    async def _approve(self, id: str) -> None:
        self._access.prompts.answer(id or None, YES)

    async def _reject(self, id: str) -> None:
        self._access.prompts.answer(id or None, NO)

    async def _interrupt(self, _: str) -> None:
        if not await self.interrupt():
            raise NotApplicable("nothing is being answered to you", "say something")

    async def _leave(self, _: str) -> None:
        await self.interrupt()
        await self._across(partial(self._ledger.rooms.leave, self._room))

    async def _quit(self, _: str) -> None:
        self.is_over = True
        self._on_change()


def _head_line(room: Room, participants: Sequence[Participant]) -> Line:
    """The room, who takes part, and what is to be known of it."""
    head: list[Span | str] = ["room ", Span(room_name(room), "label"), " with"]
    for number, participant in enumerate(participants):
        head += [", " if number else " ", Span(shown_name(participant.name), name_style(participant.name))]
    if room.unread:
        head.append(Span(f"; {counted(room.unread, 'unread message')}", "warn"))
    if room.status != "active":
        head.append(Span(f"; {room.status}: nothing is said in it until it is restored", "warn"))
    return head


def _shown_at_first(messages: Sequence[RoomMessage], first_unread: int | None) -> Sequence[RoomMessage]:
    """The newest messages: all that are unread and some before them."""
    places = [place for place, message in enumerate(messages) if message.position == first_unread]
    begin = min([len(messages) - SHOWN_MESSAGES, *(place - READ_BEFORE for place in places)])
    return messages[max(0, begin) :]


def _first_unread(messages: Sequence[RoomMessage], unread: int, reader: str) -> int | None:
    """The position of the first of these messages that the reader has not read; None where all are read."""
    if not unread:
        return None
    for message in reversed(messages):
        if message.kind == "participant" and reader not in (message.author_id, message.author_name):
            unread -= 1
            if unread == 0:
                return message.position
    return messages[0].position if messages else None


# --- What a person types in a room beside messages: its commands, and what a word that is being typed can become.

ROOM_COMMANDS = {
    "help": ("", "this list"),
    "who": ("", "who takes part, and what they do"),
    "add": ("AGENT", "let an agent in; mentioning it does so too"),
    "invite": ("PERSON", "let a person in"),
    "remove": ("NAME", "take an agent or a person out"),
    "title": ("TEXT", "give the room another title"),
    "read": ("[N]", "show the last messages again"),
    "approve": ("[ID]", "allow the tool call that waits for you"),
    "reject": ("[ID]", "refuse it"),
    "interrupt": ("", "cut the answers short that are being written to you; so does Ctrl-C"),
    "leave": ("", "take part no longer"),
    "quit": ("", "close this; you still take part. So does Ctrl-D"),
}
Suggest = Callable[[str], Sequence[Suggestion]]
"""By the letters that were typed of a name, whom they may mean, the likeliest first."""


def room_completions(before: str, suggest: Suggest) -> list[str]:
    """What the last word of a text can become: a command's name, a name that it takes, or a mention."""
    if before.startswith("/") and "\n" not in before:
        return _command_completions(before, suggest)
    at = before.rfind("@")
    if at < 0 or (at and (before[at - 1].isalnum() or before[at - 1] in '\\@"')):
        return []
    letters = before[at + 1 :]
    is_quoted = letters.startswith('"')
    letters = letters.removeprefix('"')
    if ('"' if is_quoted else " ") in letters or "\n" in letters:
        return []
    return [f"@{_typed_name(suggestion.name)} " for suggestion in suggest(letters)]


def _command_completions(before: str, suggest: Suggest) -> list[str]:
    word, space, letters = before[1:].partition(" ")
    if not space:
        commands = ROOM_COMMANDS.items()
        return [f"/{name}{' ' if takes else ''}" for name, (takes, _) in commands if name.startswith(word)]
    if " " in letters or word not in ("add", "invite", "remove"):
        return []
    return [suggestion.name for suggestion in suggest(letters) if _is_named_behind(word, suggestion)]


def _is_named_behind(command: str, suggestion: Suggestion) -> bool:
    if command == "remove":
        return suggestion.is_participant
    return not suggestion.is_participant and (suggestion.kind == "agent") == (command == "add")


def _typed_name(name: str) -> str:
    """A name as it is typed behind `@`."""
    return f'"{name}"' if any(not (letter.isalnum() or letter in "-_.") for letter in name) else name
