"""What the commands share that have messages answered: an open ledger with a planner, how an
answer is shown, and the files that go with a message; what is shown of a turn while it runs.
"""

from __future__ import annotations

import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import Decision, DecisionSource, FileKind, InboxState, MessageRole, ToolCallStatus
from weft.kernel.errors import InvalidInput, WeftError
from weft.kernel.typed_names import shell_word
from weft.ledger.model import FileNote, ImagePart, NewMessage, Part, TextPart
from weft.runtime.replies import ReplyToken
from weft.surfaces.cli.arguments import read_named_file
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.programs.program_call import ReplyStream, acting_person, note_retry
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import cut, safe_lines
from weft.verbs.answers import SentMessage, WatchedCall

if TYPE_CHECKING:
    from types import FrameType

    from weft.aio.ledger import AsyncLedger
    from weft.ledger.api import Admission, Ledger
    from weft.runtime.broker.turn_plans import Planner
    from weft.runtime.invoke.handlers import MentionNotices
    from weft.runtime.invoke.invocation import InvocationContext
    from weft.runtime.replies import FollowedAnswer, ReplyToken, TurnReply
    from weft.runtime.tool.gate import ObservedCall, OnCall
    from weft.surfaces.acting_ledger import ActingLedger
    from weft.surfaces.cli.turn_files import TurnNotes
    from weft.surfaces.cli.work.approvals import ApprovalPrompts


ABOUT_CHARACTERS = 120
WHY_CHARACTERS = 300
DENIED = "denied"
ALLOWED_BY: dict[str, str] = {
    DecisionSource.POLICY: ", allowed by the policy",
    DecisionSource.GRANT: ", allowed by a person",
    DecisionSource.SESSION_GRANT: ", allowed by a person for this session",
}
DENIED_BY: dict[str, str] = {
    DecisionSource.ARGUMENTS: "cannot run",
    DecisionSource.PERMISSION: "denied by the permissions",
    DecisionSource.POLICY: "denied by the policy",
}
"""For any other source the reason says all of it."""


class RunView:
    """Collects the calls of a turn, and shows them while they happen. Its texts are pieces of one answer each."""

    def __init__(self, call: Call, stream: ReplyStream | None = None) -> None:
        self._call = call
        self._stream = stream or ReplyStream(call)
        self.calls: list[WatchedCall] = []
        self._reasons = set[str]()
        """Those that were shown."""

    @property
    def has_answer(self) -> bool:
        """Whether the answer stands on the terminal already."""
        return self._call.screen.terminal and self._stream.has_begun

    def token(self, token: ReplyToken) -> None:
        if self._call.screen.terminal:
            self._stream.token(token)

    def observe(self, observed: ObservedCall) -> None:
        call = self._updated(observed)
        if observed.decision is Decision.ALLOW:
            return
        self._break_line()
        if observed.decision is not Decision.ASK:  # requests to people are shown with how to answer them
            self._call.note(*_line(call, self._told_reason(call)))

    def _told_reason(self, call: WatchedCall) -> str:
        """Why a call did not run or failed. What was said of an earlier call already is not said again."""
        why = cut(" ".join((call.error or "").split()), WHY_CHARACTERS)
        if not why:
            return ""
        is_known = why in self._reasons
        self._reasons.add(why)
        return ", as before" if is_known else f": {why}"

    def end(self) -> None:
        self._stream.end()

    def _break_line(self) -> None:
        """What follows is another answer."""
        if self._stream.has_begun:
            self._stream.end()
            self._stream = ReplyStream(self._call)

    def _updated(self, observed: ObservedCall) -> WatchedCall:
        """The call that it tells of: of those with the same tool and subject the first that is under way."""
        for place, call in enumerate(self.calls):
            if call.outcome is None and (call.tool, call.about) == (observed.tool, observed.about):
                is_end = observed.outcome is not None and call.decision == Decision.ALLOW
                if is_end or (observed.decision is not None and call.decision == Decision.ASK):
                    self.calls[place] = _changed(call, observed)
                    return self.calls[place]
        self.calls.append(_changed(WatchedCall(tool=observed.tool, about=observed.about), observed))
        return self.calls[-1]


def _changed(call: WatchedCall, observed: ObservedCall) -> WatchedCall:
    if observed.decision is None:
        return replace(call, outcome=observed.outcome, error=observed.message)
    is_denied = observed.decision in (Decision.DENY_CONTINUE, Decision.DENY_ABORT)
    return replace(
        call,
        decision=observed.decision.value,
        by=observed.by,
        outcome=DENIED if is_denied else None,
        error=observed.rationale if is_denied else None,
    )


def _line(call: WatchedCall, reason: str) -> list[Span | str]:
    use = f"{call.tool}({cut(' '.join(call.about.split()), ABOUT_CHARACTERS)})" if call.about else call.tool
    if call.outcome == ToolCallStatus.OK:
        return [Span("tool", "tool"), f" {use} ", Span("ok", "good"), Span(ALLOWED_BY.get(call.by or "", ""), "dim")]
    if call.outcome == DENIED:
        return [Span("tool", "tool"), f" {use} ", Span(DENIED_BY.get(call.by or "", DENIED), "bad"), reason]
    return [Span("tool", "tool"), f" {use} ", Span(f"failed, {call.outcome}", "bad"), reason]


# --- What the commands share that have messages answered: an open ledger with a planner, and how an answer is shown.

T = TypeVar("T")


class BrokerAccess(Struct, frozen=True):
    """An open ledger that can act, and how people are asked at the terminal."""

    acting: ActingLedger
    prompts: ApprovalPrompts

    @property
    def ledger(self) -> Ledger:
        return self.acting.ledger

    @property
    def mirror(self) -> AsyncLedger:
        return self.acting.mirror

    @property
    def planner(self) -> Planner:
        """What a broker in this process plans its turns with."""
        return self.acting.planner

    @property
    def people(self) -> InvocationContext:
        """How people are told of something, within the event loop."""
        return self.acting.people


def with_broker(
    call: Call,
    work: Callable[[BrokerAccess], Awaitable[T]],
    on_call: OnCall | None = None,
    *,
    has_tools: bool = True,
    opened: Ledger | None = None,
) -> T:
    """Run a coroutine with the ledger open; whatever holds it open is closed afterwards, but for one that was `opened`
    before. Without `has_tools` no tool is made for the turns that it plans."""
    import asyncio

    async def main() -> T:
        async with broker_access(call, on_call, has_tools=has_tools, opened=opened) as access:
            return await work(access)

    return asyncio.run(main())


@asynccontextmanager
async def broker_access(
    call: Call, on_call: OnCall | None = None, *, has_tools: bool = True, opened: Ledger | None = None
) -> AsyncIterator[BrokerAccess]:
    """With `opened`, over a ledger that is open already; whoever opened it closes it."""
    from weft.aio.crossing import Pool
    from weft.aio.ledger import AsyncLedger
    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.local_models import model_folder
    from weft.surfaces.acting_ledger import ActingLedger
    from weft.surfaces.cli.work.approvals import ApprovalPrompts

    ledger, pool = opened or call.writing(), Pool()
    try:
        ledger.trust.ensure("send a message to a model")
        on_retry, models = (lambda *failed: note_retry(call, *failed)), model_folder(os.environ.get)
        async with Inference(on_retry=on_retry, on_note=call.note, models=models) as inference:
            prompts = ApprovalPrompts(call, ledger, lambda: acting.people)
            acting = ActingLedger(
                AsyncLedger(ledger, pool),
                inference,
                person=partial(acting_person, call),
                on_asked=prompts.asked,
                on_call=on_call,
                has_tools=has_tools,
            )
            try:
                yield BrokerAccess(acting, prompts)
            finally:
                await prompts.aclose()
                await acting.aclose()
    finally:
        await pool.close(ledger.close if opened is None else _left_open)


def mention_notices(call: Call, access: BrokerAccess) -> MentionNotices:
    """Tells people of the mentions that come from now on. Whom it could not tell is noted."""
    from weft.runtime.invoke.handlers import MentionNotices

    return MentionNotices(access.people, partial(note_untold, call))


def note_untold(call: Call, person: str, error: Exception) -> None:
    call.note(Span(f"{person} was not told of being mentioned: {error}", "warn"))


def _left_open() -> None:
    """Whoever opened the ledger closes it."""


def deliver(
    call: Call,
    admit: Callable[[Ledger], Admission],
    *,
    is_awaited: bool,
    route: Any = None,
    names_session: bool = False,
) -> None:
    """Admit a message; unless nobody waits for it, have it answered and show the answer as it comes. Where a session
    was named and none of that name was there, it is said that it was made."""
    if not is_awaited:
        with call.writing() as ledger:
            admission = admit(ledger)
        _show_receipt(call, admission, route)
        return

    def admit_noted(ledger: Ledger) -> Admission:
        admission = admit(ledger)
        if admission.is_new_session and names_session:
            call.note("there was no session of that name: made ", Span(admission.session, "label"))
        return admission

    view = _AnswerView(call)
    try:
        on_token = view.token if call.screen.terminal else None
        admission, reply, notes = answered(call, admit_noted, on_token, view.observe, view.end)
    finally:
        view.end()
    is_shown = view.has_answer
    if call.json:
        reply = priced(reply)
    call.answer(
        SentMessage(**sent_fields(admission, reply, route), **({} if notes is None else notes.fields())),
        *([] if is_shown else [[line] for line in safe_lines(reply.reply.text)]),
    )
    if notes is not None:
        from weft.surfaces.cli.turn_files import note_turn

        note_turn(call, notes)


class _AnswerView:
    """An answer as it comes, and a line for each call of its turn. What shows calls is loaded for the first one."""

    def __init__(self, call: Call) -> None:
        self._call, self._stream = call, ReplyStream(call)
        self._run: RunView | None = None
        self._has_ended = False

    @property
    def has_answer(self) -> bool:
        """Whether the answer stands on the terminal already."""
        return self._stream.has_begun if self._run is None else self._run.has_answer

    def token(self, token: ReplyToken) -> None:
        (self._run or self._stream).token(token)

    def observe(self, observed: ObservedCall) -> None:

        if self._run is None:
            self._run = RunView(self._call, self._stream)
        self._run.observe(observed)

    def end(self) -> None:
        """End the line of the answer, once."""
        if not self._has_ended:
            self._has_ended = True
            (self._run or self._stream).end()


Answered = tuple["Admission", "TurnReply", "TurnNotes | None"]
"""A message, its answer, and what people are told of the files of its turn."""


def priced(sent: TurnReply) -> TurnReply:
    """With its cost, which whoever asked the model did not record. Looked up only where it is told: prices take a
    while to load."""
    from weft.kernel.clock import SystemClock
    from weft.runtime.inference.model_requests import recorded_cost

    reply = sent.reply
    if reply.cost is not None:
        return sent
    return replace(sent, reply=replace(reply, cost=recorded_cost(reply, SystemClock().now_ms())))


def answered(
    call: Call,
    admit: Callable[[Ledger], Admission],
    on_token: Callable[[ReplyToken], None] | None,
    on_call: OnCall | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> Answered:
    """Admit a message and have it answered: by the broker that runs already, else by one in this process, for which
    everything is loaded that a turn may need. Raises what its turn failed with. Whoever is interrupted takes the
    message back, or has its turn cut short."""
    from weft.ledger.api import Runs

    with closing(call.writing()) as ledger:
        ledger.trust.ensure("send a message to a model")
        admissions: list[Admission] = []

        def admit_noted(ledger: Ledger) -> Admission:
            with interrupts_delayed():  # or a message may wait of which nobody knows
                admissions.append(admission := admit(ledger))
            if admission.is_fork:
                call.note("in a new session: ", Span(admission.session, "label"))
            return admission

        try:
            if Runs(ledger).has_broker():
                answer = _answered_by_others(call, admit_noted, on_token, ledger, on_call)
            else:
                answer = _answered_here(call, admit_noted, on_token, ledger, None, on_call)
            on_end()  # notes begin a line of their own behind an answer that was shown as it came
            turn = ledger.turn(answer[1].turn.id)
            if isinstance(turn.effective_config, dict) and "withheld" in turn.effective_config:
                from weft.surfaces.cli.turn_lists import withheld_of

                for reason in withheld_of(turn):
                    call.note(reason)
            return answer
        except KeyboardInterrupt:
            from weft.runtime.replies import leave_message

            for admission in admissions:
                call.note(leave_message(ledger, admission.message))
                _note_left(call, ledger, admission)
            raise
        except WeftError as error:
            for admission in admissions:
                error.again = _command_line_again(ledger, admission.message) or error.again
            raise


def _command_line_again(ledger: Ledger, message_id: str) -> str:
    """The command line that asks again for a message with which nothing more happens by itself; empty for any other."""
    message = ledger.inbox.get(message_id)
    if message.state != InboxState.DEAD:
        return ""
    if message.turn is not None:
        return f"weft retry {shell_word(message.turn)}"
    return f"weft inbox --again {shell_word(message.id)}"


def _note_left(call: Call, ledger: Ledger, admission: Admission) -> None:
    """What can be done with the turn of a message whose sender has gone."""
    if (turn := ledger.inbox.get(admission.message).turn) is not None:
        call.note(
            f"`weft show {shell_word(turn)}` shows what had come, `weft send --session {shell_word(admission.session)}"
            f" TEXT` goes on after it, `weft undo {shell_word(admission.session)}` takes it back"
        )


@contextmanager
def interrupts_delayed() -> Iterator[None]:
    """Ctrl-C meanwhile is heard afterwards; a second one at once. Other threads never hear of it, and where it is
    ignored it stays so."""
    usual, delayed = signal.getsignal(signal.SIGINT), list[int]()
    if not callable(usual) or current_thread() is not main_thread():
        yield
        return

    def delay(number: int, frame: FrameType | None) -> None:
        delayed.append(number)
        if len(delayed) > 1:
            usual(number, frame)

    signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if len(delayed) == 1:
            usual(delayed[0], None)


def _notes_of(call: Call, ledger: Ledger, turn: str) -> TurnNotes | None:
    """Nothing is loaded for a turn without tool calls."""
    if not ledger.turn(turn).tool_call_count:
        return None
    from weft.surfaces.cli.turn_files import turn_notes_of

    return turn_notes_of(call, ledger, [turn])


class WaitingMessage(Struct, frozen=True):
    """A message that was admitted already, and its answer as far as it was heard of, if anybody listens."""

    admission: Admission
    answer: FollowedAnswer | None


def _answered_by_others(
    call: Call,
    admit: Callable[[Ledger], Admission],
    on_token: Callable[[ReplyToken], None] | None,
    ledger: Ledger,
    on_call: OnCall | None,
) -> Answered:
    """The same by the broker that runs; where it does not get to it, in this process."""
    from weft.runtime.replies import FollowedAnswer, await_served

    admission = admit(ledger)
    message, session = admission.message, admission.session_id
    answer = None if on_token is None else FollowedAnswer(ledger, message, session, on_token)
    reply = await_served(ledger, message, session, answer)
    if reply is not None:
        return admission, reply, _notes_of(call, ledger, reply.turn.id)
    return _answered_here(call, admit, on_token, ledger, WaitingMessage(admission, answer), on_call)


def _answered_here(
    call: Call,
    admit: Callable[[Ledger], Admission],
    on_token: Callable[[ReplyToken], None] | None,
    ledger: Ledger,
    waiting: WaitingMessage | None,
    on_call: OnCall | None,
) -> Answered:
    """The same in this process; `waiting` is a message that was admitted already."""

    async def work(access: BrokerAccess) -> Answered:
        from weft.runtime.broker.broker import answer_admitted, broker_of, to_the_end
        from weft.runtime.broker.turn_plans import SenderContext

        broker_of(access.mirror).plan_with(access.planner)
        sending = SenderContext(planner=access.planner)
        if waiting is None:
            admission, hear = await to_the_end(access.mirror.crossing.run(lambda: admit(ledger))), on_token
        else:
            admission, hear = waiting.admission, _ignore_token if waiting.answer is not None else None
        with access.prompts.typed():
            await access.prompts.show_queue(admission)
            async with _followed_answer(access, waiting), _asking_people(access, waiting):
                reply = await answer_admitted(access.mirror, admission, sending, on_token=hear)
        notes = await access.mirror.crossing.run(partial(_notes_of, call, ledger, reply.turn.id))
        return admission, reply, notes

    return with_broker(call, work, on_call, opened=ledger)


def _ignore_token(_: ReplyToken) -> None:
    """Has the model's answer come in pieces, for those who follow the session."""


@asynccontextmanager
async def _followed_answer(access: BrokerAccess, waiting: WaitingMessage | None) -> AsyncIterator[None]:
    """Go on telling an answer that another broker began: whichever runs the turn in the end, and whatever was told of
    it already."""
    import asyncio

    answer = None if waiting is None else waiting.answer
    if answer is None:
        yield
        return

    async def follow() -> None:
        async for item in access.mirror.follow(answer.session, after=answer.position):
            answer.deliver(item)

    following = asyncio.ensure_future(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)  # what it did not tell is told now
        await access.mirror.crossing.run(answer.deliver_rest)


@asynccontextmanager
async def _asking_people(access: BrokerAccess, waiting: WaitingMessage | None) -> AsyncIterator[None]:
    """Show the requests to people that come of a turn which another broker may run."""
    if waiting is None:
        yield
        return
    import asyncio

    asking = asyncio.ensure_future(access.prompts.show_requests(waiting.admission.session_id))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)  # a ledger that is away is heard of by the answer


def _show_receipt(call: Call, admission: Admission, route: Any) -> None:
    where = " waits in new session " if admission.is_new_session else " waits in session "
    waiting = SentMessage(**receipt_fields(admission, "queued", route))
    call.answer(waiting, [Span(admission.message, "id"), where, Span(admission.session, "label")])
    call.note("a broker answers it: `weft broker` runs one; `weft inbox` shows what waits")


def receipt_fields(admission: Admission, state: str, route: Any, **answer: Any) -> dict[str, Any]:
    """The fields of a message that was admitted."""
    return dict(
        message=admission.message,
        session=admission.session,
        session_id=admission.session_id,
        is_fork=admission.is_fork,
        state=state,
        route=route,
        receipt=admission.receipt,
        is_new_session=admission.is_new_session,
        **answer,
    )


def sent_fields(admission: Admission, sent: TurnReply, route: Any = None) -> dict[str, Any]:
    """The fields of a message that was answered."""
    return receipt_fields(admission, "answered", route, **reply_fields(sent))


def reply_fields(sent: TurnReply) -> dict[str, Any]:
    """The fields of an answer that every command tells which waits for one."""
    reply = sent.reply
    return {
        "turn": sent.turn.id,
        "text": reply.text,
        "thinking": reply.thinking or None,
        "model": reply.model,
        "model_id": reply.model_id,
        "provider": reply.provider,
        "finish": str(reply.finish),
        "usage": reply.usage,
        "cost": reply.cost,
    }


# --- Files that go with a message: text as a part of its own, an image as an image.

MAX_FILE_BYTES = 16 * 1024 * 1024
IMAGES = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"))


def message_with(text: str, files: Sequence[str], workspace: str | None = None) -> NewMessage:
    """A message of a user with the contents of these files; each is noted as attached. `workspace` is the folder that
    it is sent from."""
    context = None if workspace is None else {"workspace": workspace}
    if not files:
        return NewMessage(role=MessageRole.USER, content=text, context=context)
    parts: list[Part] = [TextPart(text), *map(_part_of_file, files)]
    notes = tuple(FileNote(kind=FileKind.ATTACHED, path=file) for file in files)
    return NewMessage(role=MessageRole.USER, content=tuple(parts), files=notes, context=context)


def image_part(file: str) -> ImagePart:
    """The image in a file. Raises InvalidInput where the file holds none."""
    part = _part_of_file(file)
    if not isinstance(part, ImagePart):
        raise InvalidInput(f"{file} is no image", "a message of a room holds text and images; say the text itself")
    return part


def _part_of_file(file: str) -> Part:
    return attached_part(file, _bytes(file))


def attached_part(file: str, data: bytes) -> TextPart | ImagePart:
    """What stands in a message of a file. Raises InvalidInput for one that is neither an image nor text."""
    if (kind := _image_kind(data)) is not None:
        return ImagePart(f"data:image/{kind};base64,{b64encode(data).decode()}")
    try:
        return TextPart(f"File {file}:\n{data.decode()}")
    except UnicodeDecodeError:
        hint = "attach text in UTF-8, or an image: PNG, JPEG, GIF or WebP"
        raise InvalidInput(f"{file} is neither text nor an image", hint) from None


def _bytes(file: str) -> bytes:
    if not Path(file).is_file():
        raise InvalidInput(f"{file} is no file", "name a file that is there")
    data = read_named_file(file, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"{file} is larger than {MAX_FILE_BYTES // 2**20} MiB", "attach the part that matters")
    return data


def _image_kind(data: bytes) -> str | None:
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in IMAGES if data.startswith(start)), None)
