"""Has a trigger fire for an occasion: composes its message, finds where it goes, records both once.

A delivery of a webhook is such an occasion: it is checked against its secret, and fires once.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock, iso_from_ms
from weft.kernel.contents import json_bytes, text_bytes
from weft.kernel.enums import MessageRole, MessageSource, ProgramKind
from weft.kernel.errors import (
    InboxFull,
    InvalidConfig,
    InvalidInput,
    LabelTaken,
    NotAllowed,
    NotApplicable,
    NotFound,
    StoreError,
    WeftError,
    quoted,
)
from weft.kernel.foreign_input import MIB
from weft.ledger.api import (
    CursorMove,
    FiringOutcome,
    Ledger,
    MessageTarget,
    NewFiring,
    RoomTarget,
    TriggerLog,
    TriggerOccasion,
    TriggerStanding,
)
from weft.ledger.model import DEFAULT_AGENT, NewMessage
from weft.ledger.write.turn_events import DIRECT_KEY
from weft.programs import Programs
from weft.programs.program_records import Program, Resolver, resolve_config
from weft.programs.program_writer import ensure_own, ensure_vouched
from weft.programs.triggers import (
    DEFAULT_BREAKER,
    DEFAULT_TOLERANCE_SECONDS,
    TEMPLATE_PLACE,
    TRIGGER,
    CronSchedule,
    IntervalSchedule,
    Schedule,
    SingleSchedule,
    interval_ms,
    offset_of,
    single_time_ms,
    time_zone,
)
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.invoke.invocation import chain_context
from weft.runtime.invoke.message_routes import DEFAULT_ALTERNATIVES, DEFAULT_THRESHOLD, choose_route

# --- What a trigger says: its template with the values of an occasion put in, or the occasion itself.

LIST_PLACE = re.compile(r"[0-9]{1,9}")
PLAIN_EVENT_ID = re.compile(r"[\w.:@+-]{1,128}", re.ASCII)
PLAIN_SENDER = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
SENDER_DIGITS = 16
"""Of the digest that stands for another name. A plain name that looks like one is told by its own digest, or whoever
takes such a name would come into the session of somebody else."""
SENDER_DIGEST = re.compile(rf"[0-9a-fA-F]{{{SENDER_DIGITS}}}")
MOST_CHARACTERS = 64 * 1024
"""So much of each value enters a message."""


def compose(template: str | None, values: Mapping[str, Any]) -> str:
    """The text of a message. Without a template it is the name of the trigger and what was delivered."""
    if template is None:
        return f"{values['trigger']}:\n\n{shown(values.get('payload'))}"
    return TEMPLATE_PLACE.sub(lambda match: shown(value_at(values, match[1].split("."))), template)


def value_at(values: Any, places: list[str]) -> Any:
    """The value at a place; None where there is none."""
    for place in places:
        if isinstance(values, Mapping):
            values = values.get(place)
        elif isinstance(values, list) and LIST_PLACE.fullmatch(place) and int(place) < len(values):
            values = values[int(place)]
        else:
            return None
    return values


def sender_name(payload: Any, place: str) -> str | None:
    """How a session names whoever a payload comes from: as the payload does, where that is a plain name, else by a
    digest. No two names are one. None where the payload names nobody."""
    value = value_at(payload, place.split("."))
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        return None
    name = str(value)
    is_plain = PLAIN_SENDER.fullmatch(name) is not None and SENDER_DIGEST.fullmatch(name) is None
    return name if is_plain else sha256(text_bytes(name)).hexdigest()[:SENDER_DIGITS]


def shown(value: Any) -> str:
    """A value as text: nothing for none, text as it is, all else as JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}… ({len(text)} characters)"


def values_of(trigger: str, at_ms: int, payload: Any, sessions: str | None) -> dict[str, Any]:
    """The names that a template may use."""
    return {"trigger": trigger, "time": iso_from_ms(at_ms), "payload": payload, "sessions": sessions}


# --- Whether the things that a trigger's configuration names are there.


def ensure_there(programs: Programs, config: Mapping[str, Any]) -> None:
    """Refuse a configuration that names a task, room, agent, turn or folder that is not there, or an agent that takes
    no part in the room that it is to answer in. Sessions are made when they are first sent to. What has no right form
    is left to whoever checks forms."""
    on, to = (value if isinstance(value, dict) else {} for value in (config.get("on"), config.get("to")))
    watched = on.get("file")
    if isinstance(on.get("task"), str):
        programs.get(on["task"], ProgramKind.TASK)
    if isinstance(on.get("room"), str):
        programs.ledger.rooms.get(on["room"])
    # Of others the program asks first whether they may name the folder: they do not learn here whether it is there.
    if isinstance(watched, dict) and isinstance(watched.get("folder"), str) and programs.ledger.authority.is_local:
        _ensure_folder(watched["folder"])
    if isinstance(to.get("thread"), str):
        programs.ledger.resolve(to["thread"])
    agent = programs.get(to["persona"], ProgramKind.AGENT) if isinstance(to.get("persona"), str) else None
    if isinstance(to.get("room"), str):
        room = programs.ledger.rooms.get(to["room"])
        present = {participant.agent_id for participant in programs.ledger.rooms.participants(room.id)}
        if agent is not None and agent.id not in present:
            raise NotApplicable(f"agent {agent.name!r} takes no part in room {to['room']!r}", "let it in first")


def _ensure_folder(folder: str) -> None:
    try:
        is_there = Path(folder).is_dir()
    except (OSError, ValueError):  # a name that no file system takes: too long, or with NUL
        is_there = False
    if not is_there:
        raise InvalidInput(f"there is no folder {quoted(folder, 200)}", "make it first, or name another")


# --- Has a trigger fire for an occasion: composes its message, finds where it goes, and writes both down once.

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
        self,
        trigger: ReadyTrigger,
        occasion: TriggerOccasion,
        cursor: CursorMove | None = None,
        *,
        raises: bool = False,
    ) -> FiringOutcome:
        """Fire once for this occasion. What goes wrong is recorded; with `raises` it is raised, too: the sender
        of a delivery tries again."""
        empty = self._new_firing(trigger, occasion, NewMessage(role=MessageRole.USER, content=""), cursor)
        try:
            programs = self.acting(trigger)
            text, is_untrusted = self._message_text(trigger, occasion, programs.ledger)
            message = NewMessage(role=MessageRole.USER, content=text, source=occasion.source)
            target = self._message_target(trigger, programs, text, occasion.payload)
            new = self._new_firing(trigger, occasion, message, cursor, target=target, is_untrusted=is_untrusted)
            outcome = TriggerLog(programs.ledger).fire(new)
            self._promote_sender(trigger, occasion, outcome)
            return outcome
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

    def _promote_sender(self, trigger: ReadyTrigger, occasion: TriggerOccasion, outcome: FiringOutcome) -> None:
        """Where whoever wrote is known as a person of this ledger, let the key of that person lead to their session,
        too. A key that leads somewhere already stays as it is."""
        place = trigger.config.get("to", {}).get("sender")
        if place is None or outcome.admission is None or not outcome.is_new:
            return
        person = self._known_person(value_at(occasion.payload, place.split(".")))
        if person is None:
            return
        key, ledger = f"{DIRECT_KEY}{person}", self.programs.ledger
        try:
            ledger.session(key)
        except NotFound:
            # somebody else gave that name right now, or whoever runs the broker may not give names
            with suppress(LabelTaken, NotAllowed):
                ledger.labels.promote(outcome.admission.session_id, key)

    def _known_person(self, sender: Any) -> str | None:
        """The name of the person whom a channel calls so: by their name, their id, or their address of mail."""
        if not isinstance(sender, str) or not sender:
            return None
        people = [person for person in self.programs.all(ProgramKind.HUMAN) if not person.foreign]
        named = [person.name for person in people if sender in (person.name, person.id)]
        mailed = [person.name for person in people if _email(person) == sender.casefold()]
        known = named or mailed
        return known[0] if len(known) == 1 else None

    def note_error(self, trigger: ReadyTrigger, occasion: TriggerOccasion, error: Exception) -> FiringOutcome:
        """Record that a trigger could not fire. Raises NotApplicable or NotFound where it is not to fire any more."""
        message = NewMessage(role=MessageRole.USER, content="")
        return self.log.record_error(self._new_firing(trigger, occasion, message, None), error)

    def fire_by_hand(self, trigger: ReadyTrigger, payload: Any = None) -> FiringOutcome:
        """Fire now, whatever sets it off otherwise. What it sends is answered with the rights that both those who made
        the trigger and those who fire it have."""
        now = self.clock.now_ms()
        digest = occasion_digest("hand", self.programs.ledger.replica, self.log.newest(), now)
        occasion = TriggerOccasion(digest=digest, source=MessageSource.TRIGGER, due_ms=now, payload=payload)
        standing = trigger.standing
        principals = tuple(dict.fromkeys((*standing.principals, *self._person_ids())))
        return self.fire(ReadyTrigger(trigger.program, replace(standing, principals=principals)), occasion, raises=True)

    def _person_ids(self) -> list[str]:
        """The ids of everybody in whose name a trigger is fired by hand; nobody where that is the ledger's owner."""
        names = [principal.id for principal in reversed(self._person.chain)]
        return [self.programs.get(name).id for name in names if name != DEFAULT_AGENT]

    def _new_firing(
        self,
        trigger: ReadyTrigger,
        occasion: TriggerOccasion,
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

    def _message_text(self, trigger: ReadyTrigger, occasion: TriggerOccasion, ledger: Ledger) -> tuple[str, bool]:
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

    def _message_target(
        self, trigger: ReadyTrigger, programs: Programs, text: str, payload: Any
    ) -> MessageTarget | RoomTarget:
        """As configured; else the agent that created it, and what a person created has a session of its own."""
        to = trigger.config.get("to", {})
        if "room" in to:
            return RoomTarget(to["room"], to["persona"])
        if "thread" in to:
            return MessageTarget(turn=programs.ledger.resolve(to["thread"]), persona=to.get("persona"))
        if "smart" in to:
            return self._fitting_target(programs.ledger, text, to["smart"])
        if to:
            agent = programs.get(to["persona"], ProgramKind.AGENT).name if "persona" in to else None
            if "sender" in to and (sender := sender_name(payload, to["sender"])) is not None:
                return MessageTarget(session=f"{DIRECT_KEY}{trigger.program.name}:{sender}", persona=agent)
            if agent is not None or "session" in to:
                return MessageTarget(session=to.get("session"), persona=agent)
        return self._own_target(trigger)

    def _fitting_target(self, ledger: Ledger, text: str, fallback: str) -> MessageTarget:
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


def _email(person: Program) -> str | None:
    email = person.config.get("email") if isinstance(person.config, dict) else None
    return email.casefold() if isinstance(email, str) else None


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


# --- Deliveries of webhooks: whether a sender signed one, and which occasion it is, however it is written.

MOST_BODY_BYTES = MIB
MOST_HEADER_BYTES = 64 * 1024
MOST_HEADERS = 200
LONGEST_SIGNATURES = 4096
DEEPEST_VALUE = 100
NOT_JSON = object()


class WebhookDelivery(Struct, frozen=True):
    """What was delivered: headers by their names in small letters, and the body as it came."""

    headers: Mapping[str, str]
    body: bytes


class SignedPayload(Struct, frozen=True):
    """A delivery that its sender signed."""

    occasion: str
    """A digest of what is signed, whatever bytes it came in."""
    payload: Any
    """The JSON value of the body, or its text."""
    event_id: str | None = None
    """As its sender names the event, where what is signed does."""


def read_delivery(data: bytes) -> WebhookDelivery:
    """Headers, an empty line, and the body: as an HTTP request has them, with or without its first line."""
    head, separator, body = _divide_head(data)
    if not separator:
        raise InvalidInput("the delivery has no body", "give headers, an empty line, then the body")
    if len(head) > MOST_HEADER_BYTES or len(body) > MOST_BODY_BYTES:
        raise InvalidInput("the delivery is too large", f"a body has at most {MOST_BODY_BYTES} bytes")
    lines = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    if lines and ":" not in lines[0].split(" ")[0]:
        lines = lines[1:]  # the request's first line
    if len(lines) > MOST_HEADERS:
        raise InvalidInput(f"the delivery has {len(lines)} headers", f"at most {MOST_HEADERS} are read")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        key = name.strip().casefold()
        if not colon or not key:
            raise InvalidInput(f"{quoted(line)} is no header", "write it as NAME: VALUE")
        if key in headers and headers[key] != value.strip():
            raise InvalidInput(f"the header {quoted(key)} is given twice, differently", "give it once")
        headers[key] = value.strip()
    return WebhookDelivery(headers, body)


def _divide_head(data: bytes) -> tuple[bytes, bytes, bytes]:
    """At the first empty line, whichever ends of lines it has."""
    places = [(data.find(mark), mark) for mark in (b"\r\n\r\n", b"\n\n")]
    found = [place for place in places if place[0] >= 0]
    if not found:
        return data, b"", b""
    start, mark = min(found)
    return data[:start], mark, data[start + len(mark) :]


def verified(webhook: Mapping[str, Any], delivery: WebhookDelivery, secret: str, now_ms: int) -> SignedPayload:
    """What a delivery says, where its sender signed it with this secret, and lately where the scheme has a time."""
    if len(delivery.body) > MOST_BODY_BYTES:
        raise InvalidInput("the delivery is too large", f"a body has at most {MOST_BODY_BYTES} bytes")
    scheme, tolerance = webhook["scheme"], webhook.get("toleranceSeconds", DEFAULT_TOLERANCE_SECONDS)
    signed = _SCHEMES[scheme](delivery)
    if signed.time is not None:
        _ensure_recent(signed.time, tolerance, now_ms)
    expected = hmac.new(_signing_key(scheme, secret), signed.covered, sha256).digest()
    is_signed = False
    for signature in signed.signatures:  # all of them, so that the time it takes tells nothing
        is_signed |= hmac.compare_digest(signature, expected)
    if not is_signed:
        raise _refused_delivery("its signature is not by this secret")
    value = json_value(delivery.body)
    event_id = signed.event_id or _event_id(scheme, value)
    id_bytes = event_id.encode(errors="surrogatepass")
    preimage = b"\0".join((b"weft.webhook.1", scheme.encode(), id_bytes, canonical_body(delivery.body, value)))
    return SignedPayload(sha256(preimage).hexdigest(), _exact_payload(delivery.body, value), _plain_event_id(event_id))


def _plain_event_id(event_id: str) -> str | None:
    """An id that can be shown and looked up; None for anything else that a sender calls one."""
    return event_id if PLAIN_EVENT_ID.fullmatch(event_id) else None


def _exact_payload(body: bytes, value: Any) -> Any:
    """The value, where a ledger can keep it exactly; else the text."""
    if value is not NOT_JSON:
        try:
            payload = json.loads(body)
            json_bytes(payload, "payload")
            return payload
        except (InvalidInput, ValueError):
            pass
    return body.decode(errors="replace")


def _refused_delivery(why: str) -> WeftError:
    return NotAllowed("trigger:deliver", ["the sender"], f"deliver this: {why}", "check the secret and the scheme")


def _ensure_recent(text: str, tolerance_seconds: int, now_ms: int) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise _refused_delivery("its time is no number of seconds")
    if abs(now_ms // 1000 - int(text)) > tolerance_seconds:
        raise _refused_delivery(f"it was signed more than {tolerance_seconds} seconds ago, or ahead")


# --- schemes ---------------------------------------------------------------------------------------------------------


class SignedParts(Struct, frozen=True):
    """What of a delivery is signed, and the signatures that it brings."""

    covered: bytes
    signatures: tuple[bytes, ...]
    time: str | None = None
    event_id: str = ""
    """The sender's id of the event, where it stands in a header that is signed."""


def _header_value(delivery: WebhookDelivery, name: str) -> str:
    value = delivery.headers.get(name, "")
    if not value or len(value) > LONGEST_SIGNATURES:
        raise _refused_delivery(f"the header {name} is missing" if not value else f"the header {name} is too long")
    return value


def _hex_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _github_parts(delivery: WebhookDelivery) -> SignedParts:
    """`X-Hub-Signature-256: sha256=HEX` over the body. It has no time, and its delivery id is not signed."""
    algorithm, _, signature = _header_value(delivery, "x-hub-signature-256").partition("=")
    return SignedParts(delivery.body, (_hex_bytes(signature),) if algorithm == "sha256" else ())


def _stripe_parts(delivery: WebhookDelivery) -> SignedParts:
    """`Stripe-Signature: t=SECONDS,v1=HEX,v1=HEX` over `SECONDS.BODY`."""
    items = [item.partition("=") for item in _header_value(delivery, "stripe-signature").split(",")]
    times = {value for name, _, value in items if name.strip() == "t"}
    if len(times) != 1:
        raise _refused_delivery("it names no single time")
    time = times.pop()
    signatures = tuple(_hex_bytes(value) for name, _, value in items if name.strip() == "v1")
    return SignedParts(time.encode() + b"." + delivery.body, signatures, time)


def _slack_parts(delivery: WebhookDelivery) -> SignedParts:
    """`X-Slack-Signature: v0=HEX` over `v0:SECONDS:BODY`, the seconds in `X-Slack-Request-Timestamp`."""
    time = _header_value(delivery, "x-slack-request-timestamp")
    version, _, signature = _header_value(delivery, "x-slack-signature").partition("=")
    covered = b"v0:" + time.encode() + b":" + delivery.body
    return SignedParts(covered, (_hex_bytes(signature),) if version == "v0" else (), time)


def _standard_parts(delivery: WebhookDelivery) -> SignedParts:
    """`Webhook-Signature: v1,BASE64 v1,BASE64` over `ID.SECONDS.BODY`: see standardwebhooks.com."""
    event_id, time = _header_value(delivery, "webhook-id"), _header_value(delivery, "webhook-timestamp")
    if "." in event_id:  # what is signed could be divided in more than one way
        raise _refused_delivery("the header webhook-id has a full stop")
    items = [item.partition(",") for item in _header_value(delivery, "webhook-signature").split()]
    signatures = tuple(_base64_bytes(value) for version, _, value in items if version == "v1")
    covered = event_id.encode() + b"." + time.encode() + b"." + delivery.body
    return SignedParts(covered, signatures, time, event_id)


def _base64_bytes(text: str) -> bytes:
    """Standard letters or those of URLs, with or without padding."""
    import base64
    import binascii

    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _signing_key(scheme: str, secret: str) -> bytes:
    """A secret of the standard scheme may be given as `whsec_BASE64`. An empty key is refused: everybody knows it."""
    if scheme == "standard" and secret.startswith("whsec_"):
        key = _base64_bytes(secret.removeprefix("whsec_"))
    else:
        key = secret.encode()
    if not key:
        raise _refused_delivery("the secret is empty, or no base64 follows its whsec_")
    return key


_SCHEMES = {"github": _github_parts, "stripe": _stripe_parts, "slack": _slack_parts, "standard": _standard_parts}
_ID_FIELDS = {"stripe": "id", "slack": "event_id"}


def _event_id(scheme: str, value: Any) -> str:
    """The sender's id of the event, where it stands in the signed body."""
    event_id = value.get(_ID_FIELDS.get(scheme, "")) if isinstance(value, dict) else None
    return event_id if isinstance(event_id, str) else ""


# --- one form of a body ----------------------------------------------------------------------------------------------


def json_value(body: bytes) -> Any:
    """The body as JSON with numbers as they are written; NOT_JSON where it is none, or names a field twice."""
    try:
        value = json.loads(
            body.decode(),
            parse_int=Decimal,
            parse_float=Decimal,
            object_pairs_hook=_one_each,
            parse_constant=_no_constant,
        )
        _ensure_shallow(value)
        return value
    except (InvalidInput, ValueError, RecursionError, InvalidOperation):
        return NOT_JSON


def _no_constant(name: str) -> Any:
    raise InvalidInput(f"{name} is no JSON", "send JSON")


def _one_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidInput("a field is named twice", "name it once")
    return fields


def _ensure_shallow(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST_VALUE):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidInput("the value is too deep", "flatten it")


def canonical_body(body: bytes, value: Any) -> bytes:
    """The same bytes for every way to write one JSON value: spaces, the order of fields, escapes, forms of numbers.
    What is no JSON is itself."""
    if value is NOT_JSON:
        return b"bytes\0" + body
    return b"json\0" + json.dumps(_unambiguous_form(value), sort_keys=True, separators=(",", ":")).encode()


def _unambiguous_form(value: Any) -> Any:
    """The value with a mark before each list and number, so that no two values look alike."""
    if isinstance(value, dict):
        return {name: _unambiguous_form(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return ["list", *map(_unambiguous_form, value)]
    return ["number", _plain_number(value)] if isinstance(value, Decimal) else value


def _plain_number(value: Decimal) -> str:
    """Digits without zeros at their end, and the power of ten: 1, 1.0, 10e-1 and 1E0 are one number."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "JSON writes no other number"
    text = "".join(map(str, digits)).lstrip("0")
    short = text.rstrip("0")
    if not short:
        return "0"
    return f"{'-' if sign else ''}{short}e{exponent + len(text) - len(short)}"


# --- A delivery of a webhook to a trigger: checked against its secret, then fired for once.


def deliver(sender: TriggerSender, name: str, delivery: WebhookDelivery, variable: Resolver) -> FiringOutcome:
    """Fire for a signed delivery. The same one again, however it is encoded and in whatever order it comes, gives the
    same answer and changes nothing. One that is not signed, or not lately, leaves nothing behind. Raises what goes
    wrong otherwise: whoever delivers it tries again."""
    trigger = sender.require(name)
    kind, setting = trigger.occasion
    if kind != "webhook":
        raise NotApplicable(f"trigger {trigger.program.name!r} waits for no webhook", "deliver to one that does")
    secret = resolve_config(setting["secret"], variable, f"trigger {trigger.program.name!r}")
    signed = verified(setting, delivery, secret, sender.clock.now_ms())
    occasion = TriggerOccasion(
        digest=occasion_digest("webhook", signed.occasion),
        source=MessageSource.WEBHOOK,
        payload=signed.payload,
        event_id=signed.event_id,
    )
    return sender.fire(trigger, occasion, raises=True)
