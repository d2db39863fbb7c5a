"""Has a trigger fire for an occasion: composes its message, finds where it goes, and writes both down once.

Everything is done with the rights of whoever created the trigger and configured it last. Synchronous, as the ledger is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock
from weft.kernel.enums import MessageRole, MessageSource, ProgramKind
from weft.kernel.errors import InboxFull, InvalidConfig, NotApplicable, NotFound, StoreError, WeftError
from weft.ledger.api import (
    CursorMove,
    FiringOutcome,
    Ledger,
    MessageTarget,
    NewFiring,
    Occasion,
    RoomTarget,
    TriggerLog,
    TriggerStanding,
)
from weft.ledger.model import DEFAULT_AGENT, NewMessage
from weft.programs import Programs
from weft.programs.foreign import ensure_own
from weft.programs.kinds.trigger import DEFAULT_BREAKER, TRIGGER
from weft.programs.model import Program
from weft.programs.schedules import (
    CronSchedule,
    IntervalSchedule,
    Schedule,
    SingleSchedule,
    interval_ms,
    offset_of,
    single_time_ms,
    time_zone,
)
from weft.programs.vouching import ensure_vouched
from weft.runtime.broker.planner import chain_context
from weft.runtime.context import ExecutionContext
from weft.runtime.routing.smart_routes import DEFAULT_ALTERNATIVES, DEFAULT_THRESHOLD, choose_route
from weft.runtime.triggers.messages import compose, values_of

MOST_SESSIONS = 20
MOST_ANSWER_CHARACTERS = 2000


class ReadyTrigger(Struct, frozen=True):
    """A trigger that counts here, with its configuration."""

    program: Program
    standing: TriggerStanding

    @property
    def id(self) -> str:
        return self.program.id

    @property
    def config(self) -> dict[str, Any]:
        assert isinstance(self.program.config, dict)
        return self.program.config

    @property
    def occasion(self) -> tuple[str, Any]:
        """The name of what sets it off, and its settings."""
        ((name, setting),) = self.config["on"].items()
        return name, setting

    @property
    def schedule(self) -> Schedule | None:
        name, setting = self.occasion
        if name == "cron":
            return CronSchedule(setting["expression"], setting.get("zone", "UTC"))
        if name == "interval":
            return IntervalSchedule(interval_ms(setting), self.standing.since_ms)
        if name == "at":
            return SingleSchedule(single_time_ms(setting["time"], setting.get("zone")))
        return None

    @property
    def zone(self) -> tzinfo:
        """The zone by which its days are counted: that of its schedule, or the offset of its time; else UTC."""
        name, setting = self.occasion
        if name not in ("cron", "at"):
            return UTC
        if "zone" in setting:
            return time_zone(setting["zone"])
        return (offset_of(setting["time"]) if name == "at" else None) or UTC

    @property
    def breaker(self) -> int:
        return int(self.config.get("breaker", DEFAULT_BREAKER))


def readable_config(program: Program) -> dict[str, Any]:
    """The configuration of a trigger in its one form. Raises InvalidConfig where it means nothing, as one of another
    ledger may."""
    return TRIGGER.checked_values(program.config)


def find_ready(log: TriggerLog, program: Program) -> ReadyTrigger | None:
    """A trigger as it fires here. None where nobody here configured it, or where what was taken over from another
    ledger means nothing: this keeps no other trigger from firing."""
    standing = None if program.foreign else log.standing(program.id)
    if standing is None:
        return None
    try:
        return ReadyTrigger(replace(program, config=readable_config(program)), standing)
    except InvalidConfig:
        return None


def occasion_digest(kind: str, *parts: object) -> str:
    """The digest of an occasion, by what distinguishes it from all others of its kind."""
    return sha256("\0".join(("weft.occasion.1", kind, *map(str, parts))).encode()).hexdigest()


class TriggerSender:
    """Fires triggers of one open ledger. `person` is whoever runs the broker."""

    def __init__(self, programs: Programs, person: ExecutionContext, clock: Clock) -> None:
        self.programs, self.log, self.clock = programs, TriggerLog(programs.ledger), clock
        self._person = person

    def all(self) -> list[ReadyTrigger]:
        """Triggers that fire: active ones that somebody here configured or took over."""
        ready = (find_ready(self.log, program) for program in self.programs.all(ProgramKind.TRIGGER, states=["active"]))
        return [trigger for trigger in ready if trigger is not None]

    def require(self, name: str) -> ReadyTrigger:
        """A trigger by its name, whatever its state."""
        program = ensure_own(self.programs.get(name, ProgramKind.TRIGGER))
        ready = find_ready(self.log, program)
        if ready is not None:
            return ready
        try:
            readable_config(program)
        except InvalidConfig as error:
            raise NotApplicable(f"trigger {program.name!r} cannot be read: {error}", "configure it") from None
        raise NotApplicable(f"nobody here configured trigger {program.name!r}", "configure it, or take it over")

    def acting(self, trigger: ReadyTrigger) -> Programs:
        """The programs and the ledger in the name of whoever the trigger acts for. Raises NotFound where one of them
        was deleted, and NotApplicable where it names of the machine what whoever set it may not."""
        ensure_vouched(trigger.program)
        for principal in trigger.standing.principals:
            if principal != DEFAULT_AGENT and self.programs.get(principal).deleted:
                raise NotFound("agent or person", principal, "configure the trigger in another name")
        context = chain_context(self._person, self.programs, trigger.standing.principals)
        return self.programs.acting_as(context.authority)

    def fire(
        self, trigger: ReadyTrigger, occasion: Occasion, cursor: CursorMove | None = None, *, raises: bool = False
    ) -> FiringOutcome:
        """Fire once for this occasion. What goes wrong is recorded; with `raises` it is raised, too: the sender
        of a delivery tries again."""
        empty = self._firing(trigger, occasion, NewMessage(role=MessageRole.USER, content=""), cursor)
        try:
            programs = self.acting(trigger)
            text, is_untrusted = self._text(trigger, occasion, programs.ledger)
            message = NewMessage(role=MessageRole.USER, content=text, source=occasion.source)
            target = self._target(trigger, programs, text)
            new = self._firing(trigger, occasion, message, cursor, target=target, is_untrusted=is_untrusted)
            return TriggerLog(programs.ledger).fire(new)
        except StoreError:
            raise
        except InboxFull:
            if not raises:
                return self.log.record_error(empty, InboxFull("too many messages wait"))
            raise  # no error of the trigger: the sender tries again later
        except WeftError as error:
            outcome = self.log.record_error(empty, error)
            if raises:
                raise
            return outcome

    def note_error(self, trigger: ReadyTrigger, occasion: Occasion, error: Exception) -> FiringOutcome:
        """Record that a trigger could not fire. Raises NotApplicable or NotFound where it is not to fire any more."""
        message = NewMessage(role=MessageRole.USER, content="")
        return self.log.record_error(self._firing(trigger, occasion, message, None), error)

    def fire_by_hand(self, trigger: ReadyTrigger, payload: Any = None) -> FiringOutcome:
        """Fire now, whatever sets it off otherwise. What it sends is answered with the rights that both those who made
        the trigger and those who fire it have."""
        now = self.clock.now_ms()
        digest = occasion_digest("hand", self.programs.ledger.replica, self.log.newest(), now)
        occasion = Occasion(digest=digest, source=MessageSource.TRIGGER, due_ms=now, payload=payload)
        standing = trigger.standing
        principals = tuple(dict.fromkeys((*standing.principals, *self._person_ids())))
        return self.fire(ReadyTrigger(trigger.program, replace(standing, principals=principals)), occasion, raises=True)

    def _person_ids(self) -> list[str]:
        """The ids of everybody in whose name a trigger is fired by hand; nobody where that is the ledger's owner."""
        names = [principal.id for principal in reversed(self._person.chain)]
        return [self.programs.get(name).id for name in names if name != DEFAULT_AGENT]

    def _firing(
        self,
        trigger: ReadyTrigger,
        occasion: Occasion,
        message: NewMessage,
        cursor: CursorMove | None,
        *,
        target: MessageTarget | RoomTarget | None = None,
        is_untrusted: bool = True,
    ) -> NewFiring:
        return NewFiring(
            trigger=trigger.id,
            version=trigger.standing.version,
            occasion=occasion,
            message=message,
            target=target or MessageTarget(),
            principals=trigger.standing.principals,
            is_untrusted=is_untrusted,
            route={"trigger": trigger.id},
            breaker=trigger.breaker,
            cursor=cursor,
        )

    # --- what it says, and where it goes -------------------------------------------------------------------------

    def _text(self, trigger: ReadyTrigger, occasion: Occasion, ledger: Ledger) -> tuple[str, bool]:
        """The message, and whether words of others may stand in it."""
        config, at_ms = trigger.config, occasion.due_ms or self.clock.now_ms()
        include = config.get("include", {})
        sessions = session_texts(ledger, trigger.zone, include["sessions"], at_ms) if "sessions" in include else None
        values = values_of(trigger.program.name, at_ms, occasion.payload, sessions)
        template = config.get("message")
        text = compose(template, values)
        if sessions is not None and "${sessions}" not in (template or ""):
            text = f"{text}\n\n{sessions}"
        return text, occasion.payload is not None or sessions is not None

    def _target(self, trigger: ReadyTrigger, programs: Programs, text: str) -> MessageTarget | RoomTarget:
        """As configured; else the agent that created it, and what a person created has a session of its own."""
        to = trigger.config.get("to", {})
        if "room" in to:
            return RoomTarget(to["room"], to["persona"])
        if "thread" in to:
            return MessageTarget(turn=programs.ledger.resolve(to["thread"]), persona=to.get("persona"))
        if "smart" in to:
            return self._fitting(programs.ledger, text, to["smart"])
        if to:
            agent = programs.get(to["persona"], ProgramKind.AGENT).name if "persona" in to else None
            return MessageTarget(session=to.get("session"), persona=agent)
        return self._own_target(trigger)

    def _fitting(self, ledger: Ledger, text: str, fallback: str) -> MessageTarget:
        """The thread that a text fits by its words, among those that whoever the trigger acts for may read; else a
        session."""
        choice = choose_route(
            ledger.related_turns(text),
            {},
            now_ms=self.clock.now_ms(),
            threshold=DEFAULT_THRESHOLD,
            limit=DEFAULT_ALTERNATIVES,
            fallback=fallback,
        )
        if choice.turn is None:
            return MessageTarget(session=fallback)
        return MessageTarget(session=choice.session) if choice.session else MessageTarget(turn=choice.turn)

    def _own_target(self, trigger: ReadyTrigger) -> MessageTarget:
        owner = trigger.standing.owner
        program = None if owner == DEFAULT_AGENT else self.programs.get(owner)
        if program is not None and program.kind == ProgramKind.AGENT:
            return MessageTarget(persona=program.name)
        return MessageTarget(session=f"trigger:{trigger.program.name}")


def session_texts(ledger: Ledger, zone: tzinfo, period: str, now_ms: int) -> str:
    """The sessions of a period, each with what it was about and its last answer."""
    since, until = period_ms(period, now_ms, zone)
    report = ledger.usage.work(since=since, until=until)
    works = [work for project in report.projects for work in project.sessions if not work.is_subagent]
    blocks = []
    for work in works[:MOST_SESSIONS]:
        answer = _last_answer(ledger, work.session_id, until)
        blocks.append(f"## {work.label}\n{work.about}\n{work.turns} turns, {work.tool_calls} tool calls.\n\n{answer}")
    left_out = len(works) - len(blocks)
    if left_out > 0:
        blocks.append(f"({left_out} more sessions are left out.)")
    return "\n\n".join(blocks) or "There were no sessions."


def period_ms(period: str, now_ms: int, zone: tzinfo) -> tuple[int, int]:
    """From when until when a period is, by the calendar of a zone."""
    today = datetime.fromtimestamp(now_ms / 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    days = {"yesterday": (1, 0), "today": (0, -1), "week": (7, 0)}[period]
    start, end = (today.replace(tzinfo=None) - timedelta(days=back) for back in days)
    return tuple(round(day.replace(tzinfo=zone).timestamp() * 1000) for day in (start, end))  # type: ignore[return-value]


def _last_answer(ledger: Ledger, session: str, until_ms: int) -> str:
    turns = ledger.log(5, session=session)
    turn = next((one for one in turns if one.started_at < until_ms), None)
    if turn is None:
        return ""
    answers = [message.text for message in ledger.messages(turn.id) if message.role == MessageRole.ASSISTANT]
    text = next((answer for answer in reversed(answers) if answer.strip()), "")
    return text if len(text) <= MOST_ANSWER_CHARACTERS else f"{text[:MOST_ANSWER_CHARACTERS]}…"
