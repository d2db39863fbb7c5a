"""Conversations begun, titled, archived and forked; people and agents let in and removed; and
what agents and people tell of themselves, for whoever may read it.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import (
    AgentKind,
    ParticipantKind,
    ProgramKind,
    RoomHistory,
    RoomNotice,
    RoomStatus,
    SystemAgentKind,
)
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound
from weft.kernel.events import (
    ConversationArchived,
    ConversationCreated,
    ConversationRestored,
    ConversationRetitled,
    InvitationDeclined,
    conversation_stream,
    program_stream,
)
from weft.kernel.ledger_events import AgentCreated
from weft.ledger.broker.admission import fork_at, scope_of
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import (
    access_of,
    counted_config,
    creators_of,
    find_system_agent,
    is_private,
    system_kind_of,
)
from weft.ledger.read.sessions import agent_names
from weft.ledger.room_posting import OpenRoom, cancel_deliveries
from weft.ledger.room_records import (
    AgentProfile,
    ConversationRow,
    ParticipantRow,
    PersonProfile,
    ambiguous_room,
    find_conversation,
    has_open_invitation,
    ids_named,
    load_conversation,
    participants_of,
    readable_ranges,
)
from weft.ledger.views.rows import ProgramRow, find_program, load_program, text_of
from weft.ledger.write.approvals import ensure_person
from weft.ledger.write.transaction import Append, CommandAnswer, LedgerWriter, keyed_command, run_once
from weft.store.port import ReadTxn
from weft.store.sql import Sql

# --- What agents and people tell of themselves.

AGENT_EMOJI, SYSTEM_EMOJI, PERSON_EMOJI = "🤖", "🧭", "👤"
"""Shown where there is no picture and no emoji was chosen."""
PICTURE_ADDRESSES = ("https://", "http://", "data:image/")
EMOJI_LIMIT = 16
"""Code points: an emoji may consist of several."""


def agent_profile(txn: ReadTxn, name: str) -> AgentProfile:
    """Of an agent, by name or id; a deleted one is found by its id."""
    row = _readable_program(txn, name, ProgramKind.AGENT, "agent")
    config = _counted_config(txn, row)
    identity = config.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    kind = system_kind_of(txn, row)
    is_hidden = is_private(txn, row)
    tools = config.get("tools")
    return AgentProfile(
        id=row.id,
        name=row.name,
        description=_text_or_none(identity.get("description")),
        personality=_text_or_none(identity.get("soul")),
        tools=tuple(tool for tool in tools if isinstance(tool, str)) if isinstance(tools, list) else (),
        toolset=_text_or_none(config.get("toolset")),
        created_by=row.created_by,
        created_by_name=agent_names(txn.sql, [row.created_by])[row.created_by],
        created_at=row.created_at,
        kind=AgentKind.USER_AGENT.value if kind is None else AgentKind.SYSTEM_AGENT.value,
        system_agent_kind=kind,
        avatar_url=_picture_address(identity.get("avatar")),
        emoji=_emoji_or_none(identity.get("emoji")) or (AGENT_EMOJI if kind is None else SYSTEM_EMOJI),
        last_active_time=last_active(txn.sql, row.id),
        public=not is_hidden,
        private=is_hidden,
        is_deleted=bool(row.deleted),
    )


def person_profile(txn: ReadTxn, name: str) -> PersonProfile:
    """Of a person, by name or id. Whoever opened the ledger is `local`."""
    if name == DEFAULT_AGENT:
        return PersonProfile(
            id=name, name=name, emoji=PERSON_EMOJI, last_active_time=last_active(txn.sql, name, has_turns=False)
        )
    row = _readable_program(txn, name, ProgramKind.HUMAN, "person")
    config = _counted_config(txn, row)
    return PersonProfile(
        id=row.id,
        name=row.name,
        email=_text_or_none(config.get("email")),
        image=_picture_address(config.get("image")),
        emoji=PERSON_EMOJI,
        presence=row.state,
        last_active_time=last_active(txn.sql, row.id, has_turns=False),
        is_deleted=bool(row.deleted),
    )


def last_active(sql: Sql, node: str, *, has_turns: bool = True) -> int | None:
    """When somebody last said something in a conversation, or an agent's newest turn began or ended."""
    message = sql.fetch_row(
        "SELECT posted_at FROM room_message WHERE node = ? ORDER BY posted_at DESC LIMIT 1", (node,)
    )
    turn = None
    if has_turns:
        turn = sql.fetch_row(
            "SELECT coalesce(completed_at, started_at) FROM turn WHERE persona = ? ORDER BY n DESC LIMIT 1", (node,)
        )
    return max((int(row[0]) for row in (message, turn) if row is not None and row[0] is not None), default=None)


def _readable_program(txn: ReadTxn, name: str, kind: ProgramKind, noun: str) -> ProgramRow:
    row = find_program(txn.sql, name)
    if row is None or row.kind != kind or not access_of(txn).may_read_program(row):
        raise NotFound(noun, name, Action.LIST_PROGRAMS)
    return row


def _counted_config(txn: ReadTxn, row: ProgramRow) -> dict[str, Any]:
    """What counts here: another ledger's words about somebody are not shown as theirs."""
    config = counted_config(txn, row.id)
    return config if isinstance(config, dict) else {}


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _picture_address(value: Any) -> str | None:
    """An address that a picture can be loaded from; nothing that could run."""
    return value if isinstance(value, str) and value.lower().startswith(PICTURE_ADDRESSES) else None


def _emoji_or_none(value: Any) -> str | None:
    text = value.strip() if isinstance(value, str) else ""
    return text if 0 < len(text) <= EMOJI_LIMIT and text.isprintable() else None


# --- Conversations begun, titled, archived and forked; people and agents let in and removed.

TITLE_LIMIT = 200
TRIAGE_NAMES = ("triage", "room-triage")


class NewRoom(Struct, frozen=True, kw_only=True):
    """A conversation that is to be made, and the agents and people that it begins with."""

    title: str | None = None
    history: RoomHistory = RoomHistory.JOINED
    agents: tuple[str, ...] = ()
    people: tuple[str, ...] = ()


def create(writer: LedgerWriter, new: NewRoom, *, key: str | None) -> str:
    """A conversation of whoever acts; its id. The triage agent takes part in it from the beginning."""
    command = keyed_command("create_room", key, [new], writer.authority)

    def work(append: Append) -> str:
        answer = run_once(append, command, lambda: CommandAnswer(_create_room(append, new)))
        append.seal()
        return answer.node

    return writer.write(work)


def _create_room(append: Append, new: NewRoom) -> str:
    person = ensure_person(append, "room:create", "make a room")
    id = append.ulids.mint()
    _begin_conversation(append, id, title=_title_content(append, id, new.title), history=new.history)
    room = _load_room(append, id)
    room.add_person(person)
    room.add_agent(_triage_agent(append))
    for name in new.people:
        _let_in(room, _person_id(append, name))
    for name in new.agents:
        _add_agent(room, name)
    return id


def _begin_conversation(append: Append, id: str, **fields: str | UnsetType) -> None:
    append.stream(conversation_stream(id), None, DEFAULT_AGENT).add(ConversationCreated, **fields)


def _load_room(append: Append, id: str) -> OpenRoom:
    row = load_conversation(append.sql, id)
    assert row is not None, "it was made right now, or somebody was invited to it"
    return OpenRoom(append, row)


def _title_content(append: Append, id: str, title: str | None) -> str | UnsetType:
    return UNSET if title is None else append.contents_of(scope_of(id)).put_text(title_text(title), "title")


def title_text(title: str) -> str:
    """A title on one line, with single blanks."""
    text = " ".join(title.split())
    if not text or len(text) > TITLE_LIMIT:
        raise InvalidInput(f"a title of {len(text)} characters", f"give one of 1 to {TITLE_LIMIT}")
    return text


def _triage_agent(append: Append) -> ProgramRow:
    """The one triage agent of this ledger, made when the first conversation is."""
    agent = find_system_agent(ReadTxn(append.sql, append.txn.facts), SystemAgentKind.TRIAGE)
    if agent is not None:
        return agent
    id = append.ulids.mint()
    names = (*TRIAGE_NAMES, f"triage-{id.lower()}")
    name = next(name for name in names if find_program(append.sql, name) is None)
    with append.by_the_ledger():
        append.stream(program_stream(id), None).add(
            AgentCreated, name=append.ledger_contents.put_text(name), system_kind=SystemAgentKind.TRIAGE
        )
    program = load_program(append.sql, id)
    assert program is not None
    return program


# --- people and agents ----------------------------------------------------------------------------------------------


def add_agent(writer: LedgerWriter, name: str, agent: str) -> str:
    """Let an agent in that works for whoever acts; the id of the conversation."""

    def work(append: Append) -> str:
        room = _room_of_member(append, name, "room:add", "add an agent")
        _add_agent(room, agent)
        append.seal()
        return room.row.id

    return writer.write(work)


def _room_of_member(append: Append, name: str, right: str, action: str) -> OpenRoom:
    """A conversation that can be changed. Raises NotAllowed where whoever acts is no person who takes part."""
    room = OpenRoom.named(append, name)
    room.ensure_open()
    ensure_person(append, right, action)
    room.ensure_member(right, action)
    return room


def _add_agent(room: OpenRoom, name: str) -> None:
    append = room.append
    row = find_program(append.sql, name)
    if row is None or row.kind != ProgramKind.AGENT or row.deleted or room.system_kind(row) is not None:
        raise NotFound("agent", name, _other_kind_hint(append, row, ProgramKind.HUMAN, Action.INVITE_PERSON))
    append.access.ensure_usable(row, name)
    if not room.works_for(row, append.acting_ids):
        raise NotFound("agent", name, Action.LIST_PROGRAMS)
    if room.present(row.id) is not None:
        raise NotApplicable(f"{row.name!r} takes part already", "mention it to have it answer")
    room.add_agent(row)
    room.notice(RoomNotice.JOINED, f"{room.mention(row.id)} joined.")


def invite(writer: LedgerWriter, name: str, person: str) -> str:
    """Let a person in: by a participant, who thereby confirms an invitation where there is one."""

    def work(append: Append) -> str:
        room = OpenRoom.named(append, name)
        room.ensure_open()
        ensure_person(append, "room:invite", "let somebody in")
        node = _person_id(append, person)
        if not (append.access.is_unlimited and node == DEFAULT_AGENT):
            room.ensure_member("room:invite", "let somebody in")
        _let_in(room, node)
        append.seal()
        return room.row.id

    return writer.write(work)


def _let_in(room: OpenRoom, node: str) -> None:
    if room.present(node) is not None:
        raise NotApplicable(f"{room.name_of(node)!r} takes part already", "nothing needs to be done")
    room.add_person(node)
    room.notice(RoomNotice.JOINED, f"{room.mention(node)} joined.")


def decline(writer: LedgerWriter, name: str, person: str) -> str:
    """End an invitation without anybody joining: by a participant, or by whoever is invited."""

    def work(append: Append) -> str:
        node = _person_id(append, person)
        if append.acting_ids[0] == node:
            room = _room_inviting(append, name, node)
        else:
            room = OpenRoom.named(append, name)
            room.ensure_member("room:invite", "decline an invitation")
        room.ensure_open()
        ensure_person(append, "room:invite", "decline an invitation")
        if not has_open_invitation(append.sql, room.row.id, node):
            raise NotApplicable("there is no open invitation for them", "list the invitations")
        room.stream().add(InvitationDeclined, node=node)
        append.seal()
        return room.row.id

    return writer.write(work)


def _room_inviting(append: Append, name: str, node: str) -> OpenRoom:
    """The conversation of this name that a person is invited to; they need not take part in it."""
    ids = [id for id in ids_named(append.sql, name.strip()) if has_open_invitation(append.sql, id, node)]
    if not ids:
        raise NotFound("open invitation to", name, "list the invitations")
    if len(ids) > 1:
        raise ambiguous_room(name, ids)
    return _load_room(append, ids[0])


def _person_id(append: Append, name: str) -> str:
    if name == DEFAULT_AGENT:
        return DEFAULT_AGENT
    row = find_program(append.sql, name)
    if row is None or row.kind != ProgramKind.HUMAN or row.deleted:
        raise NotFound("person", name, _other_kind_hint(append, row, ProgramKind.AGENT, Action.ADD_AGENT))
    return row.id


def _other_kind_hint(append: Append, row: ProgramRow | None, kind: ProgramKind, action: Action) -> Action:
    """How somebody is let in who is of the other kind, if whoever acts can see them."""
    is_other = row is not None and row.kind == kind and not row.deleted and append.access.may_read_program(row)
    return action if is_other else Action.LIST_PROGRAMS


def remove(writer: LedgerWriter, name: str, who: str | None) -> str:
    """Take somebody out of a conversation; whoever names nobody, or themselves, leaves."""

    def work(append: Append) -> str:
        room = OpenRoom.named(append, name)
        room.ensure_open()
        participant = _own_part(room) if who is None else _present_participant(room, who)
        is_self = participant.node == append.acting_ids[0]
        if not is_self:
            ensure_person(append, "room:remove", "remove somebody")
        room.ensure_member("room:remove", "remove somebody")
        if not is_self or participant.kind == ParticipantKind.AGENT:
            _ensure_removable(room, participant)
        mention = room.mention(participant.node)
        room.remove(participant)
        cancel_deliveries(append, participant.session)
        notice = RoomNotice.LEFT if is_self else RoomNotice.REMOVED
        room.notice(notice, f"{mention} left." if is_self else f"{mention} was removed.")
        append.seal()
        return room.row.id

    return writer.write(work)


def _present_participant(room: OpenRoom, who: str) -> ParticipantRow:
    """Somebody present, by name or id."""
    row = None if who == DEFAULT_AGENT else find_program(room.append.sql, who)
    participant = room.present(who if row is None else row.id)
    if participant is None:
        raise NotFound("participant", who, "name somebody who takes part in the room")
    return participant


def _own_part(room: OpenRoom) -> ParticipantRow:
    """Whoever acts, as they take part."""
    participant = room.present(room.append.acting_ids[0])
    if participant is None:
        raise NotApplicable("you take no part in the room", "nothing needs to be done")
    return participant


def _ensure_removable(room: OpenRoom, participant: ParticipantRow) -> None:
    append = room.append
    row = load_program(append.sql, participant.node)
    if participant.kind == ParticipantKind.USER:
        if room.row.created_by != append.acting_ids[0] and not append.access.is_unlimited:
            raise append.refusal("room:remove", "remove a person", "whoever made the room does that")
        return
    if row is not None and room.system_kind(row) is not None:
        raise NotApplicable(f"{row.name!r} is a system agent", "it stays in every room")
    txn = room.reading
    config = None if row is None else counted_config(txn, row.id)
    if row is None or not isinstance(config, dict) or config.get("removal") != "owner" or append.access.is_unlimited:
        return
    if not creators_of(txn, row).issuperset(append.acting_ids):
        raise append.refusal("room:remove", f"remove {row.name!r}", "its owner restricted that")


# --- the conversation itself ----------------------------------------------------------------------------------------


def retitle(writer: LedgerWriter, name: str, title: str) -> str:
    def work(append: Append) -> str:
        room = _room_of_member(append, name, "room:title", "change the title")
        ref = _title_content(append, room.row.id, title)
        assert isinstance(ref, str)
        room.stream().add(ConversationRetitled, title=ref)
        mention = room.mention(append.acting_ids[0])
        room.notice(RoomNotice.RETITLED, f"{mention} changed the title to “{title_text(title)}”.")
        append.seal()
        return room.row.id

    return writer.write(work)


def set_status(writer: LedgerWriter, name: str, status: RoomStatus) -> str:
    """Archive a conversation, or bring it back: whoever made it does that."""

    def work(append: Append) -> str:
        room = OpenRoom.named(append, name)
        person = ensure_person(append, "room:archive", "archive a room")
        if not room.own.has(room.row.n, room.row.replica):
            room.ensure_open()
        if room.row.created_by != person and not append.access.is_unlimited:
            raise append.refusal("room:archive", "archive the room", "whoever made it does that")
        if room.row.status != status:
            kind = ConversationArchived if status is RoomStatus.ARCHIVED else ConversationRestored
            room.stream().add(kind)
            append.seal()
        return room.row.id

    return writer.write(work)


def fork(writer: LedgerWriter, name: str, position: int | None, *, title: str | None) -> str:
    """A new conversation of whoever acts that goes on from a message of another one; its id. The agents that were
    there then, and work for whoever forks, come along with forks of their sessions."""

    def work(append: Append) -> str:
        txn = ReadTxn(append.sql, append.txn.facts)
        row, ranges = find_conversation(txn, append.access, name)
        person = ensure_person(append, "room:fork", "fork a room")
        at = row.position if position is None else position
        if not any(low < at <= high for low, high in ranges) or not 0 < at <= row.position:
            newest = max((min(high, row.position) for _, high in ranges), default=0)
            room_name = text_of(txn, row.title) or row.id
            raise NotFound(
                f"message {at} in room", room_name, f"the newest message there that you can read is {newest}"
            )
        id = _fork_room(append, row, at, person, title)
        append.seal()
        return id

    return writer.write(work)


def _fork_room(append: Append, row: ConversationRow, at: int, person: str, title: str | None) -> str:
    origin, message = _message_at(append, row, at)
    id = append.ulids.mint()
    own_title = _title_content(append, id, title)
    if own_title is UNSET and row.title is not None:
        ref = append.sql.fetch_row("SELECT ref FROM content WHERE n = ?", (row.title,))
        own_title = UNSET if ref is None else bytes(ref[0]).hex()
    _begin_conversation(
        append, id, title=own_title, history=RoomHistory(row.history), forked_from=origin.id, at_message=message
    )
    room = _load_room(append, id)
    ranges = readable_ranges(append.sql, append.access, row, room.own)
    since = next(low for low, high in ranges if low < at <= high)
    room.add_person(person, since=since)
    for participant in _agents_at(append, row, room, at):
        _fork_agent(room, participant, row, at, since)
    if room.triage_agent() is None:
        room.add_agent(_triage_agent(append), since=since, seen=at)
    room.notice(RoomNotice.FORKED, f"{room.mention(person)} forked the room here.")
    return id


def _message_at(append: Append, row: ConversationRow, at: int) -> tuple[ConversationRow, str]:
    """The conversation that a position lies in, this one or one that it was forked from, and the message there."""
    while at <= row.forked_at and row.forked_from is not None:
        origin = load_conversation(append.sql, row.forked_from)
        if origin is None:
            break
        row = origin
    message = append.sql.fetch_row("SELECT id FROM room_message WHERE conversation = ? AND position = ?", (row.id, at))
    if message is None:
        raise NotFound("message", str(at), "name a message of the room that you can read")
    return row, message[0]


def _agents_at(append: Append, row: ConversationRow, room: OpenRoom, at: int) -> list[ParticipantRow]:
    """The agents that took part when a message was said, as far as they work for whoever forks."""
    newest_memberships = {
        participant.node: participant
        for participant in participants_of(append.sql, row.id, room.own)
        if participant.kind == ParticipantKind.AGENT
        and participant.since <= at
        and (participant.until is None or participant.until >= at)
    }
    return [agent for agent in newest_memberships.values() if _may_come(append, room, agent.node)]


def _may_come(append: Append, room: OpenRoom, node: str) -> bool:
    agent = load_program(append.sql, node)
    return agent is not None and not agent.deleted and room.works_for(agent, append.acting_ids)


def _fork_agent(room: OpenRoom, participant: ParticipantRow, row: ConversationRow, at: int, since: int) -> None:
    """An agent of the origin goes on in the fork from the last turn whose answer it posted up to that message."""
    append = room.append
    agent = load_program(append.sql, participant.node)
    assert agent is not None
    answer = append.sql.fetch_row(
        "SELECT m.turn, a.position FROM room_message m LEFT JOIN room_message a ON a.id = m.answers"
        " WHERE m.author = ? AND m.position <= ? AND m.turn IS NOT NULL ORDER BY m.position DESC LIMIT 1",
        (participant.id, at),
    )
    turn = None if answer is None else append.view.find_turn(answer[0])
    with append.by_the_ledger():
        session = None if turn is None else fork_at(append, turn, agent.id, room.session_label(agent)).id
    seen = max(since, participant.since) if answer is None or answer[1] is None else answer[1]
    room.add_agent(agent, since=max(since, participant.since), seen=min(seen, at), session=session)
