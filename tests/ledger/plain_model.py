"""A ledger as plain dicts and lists: what the state machine expects of the real one."""

from dataclasses import dataclass, field

from weft.kernel.contents import ERASED


@dataclass
class PlainTurn:
    id: str
    parent: str | None
    shown: int | None  # how many events of the parent belong to this thread; None: all
    kind: str = "normal"
    status: str = "pending"
    events: list[str | None] = field(default_factory=lambda: [None])  # the text that each event brought
    calls: dict[str, str | None] = field(default_factory=dict)  # call id -> outcome; None: still open
    tokens: int = 0
    session: str | None = None  # the one it was recorded in
    erased: bool = False

    @property
    def closed(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def open_calls(self) -> list[str]:
        return [call for call, outcome in self.calls.items() if outcome is None]

    @property
    def awaits_results(self) -> bool:
        """A result may still come; once a turn is erased nobody knows its calls' ids."""
        return "interrupted" in self.calls.values() and not self.erased

    def erase(self) -> None:
        self.events = [text and ERASED for text in self.events]
        self.erased = True

    def close(self, status: str, *, interrupted: bool) -> None:
        for call in self.open_calls:
            self.calls[call] = "interrupted"
        self.events += [None] * (1 + interrupted)
        self.status = status


@dataclass
class PlainSession:
    id: str
    label: str
    status: str = "active"
    head: str | None = None
    head_events: int | None = None
    history: list[tuple[str | None, int | None]] = field(default_factory=list)
    held_by: str | None = None  # the open turn whose writer holds the lease
    beat: int = 0  # when that writer last showed life
    words: set[str] = field(default_factory=set)  # by which it was ever called, and which were not erased

    def move(self, turn: str | None, events: int | None = None) -> None:
        self.head, self.head_events = turn, events
        self.history.append((turn, events))


class PlainLedger:
    def __init__(self) -> None:
        self.turns: dict[str, PlainTurn] = {}
        self.sessions: dict[str, PlainSession] = {}
        self.aliases: dict[str, str] = {}

    def find(self, name: str) -> PlainSession | None:
        """By label, then by alias; never by a chain of aliases."""
        live = [session for session in self.sessions.values() if session.status != "deleted"]
        by_label = [session for session in live if session.label == name]
        by_alias = [session for session in live if session.id == self.aliases.get(name)]
        return next(iter(by_label + by_alias), None)

    def add_session(self, id: str, label: str) -> PlainSession:
        made = self.sessions[id] = PlainSession(id, label, words={label})
        return made

    def add_turn(
        self,
        id: str,
        parent: str | None,
        events: int | None,
        *,
        kind: str = "normal",
        session: PlainSession | None = None,
    ) -> PlainTurn:
        """A turn that grows from its parent's end, or from the event where a head stands inside it."""
        above = None if parent is None else self.turns[parent]
        shown = events if events is not None or above is None or above.closed else len(above.events)
        made = self.turns[id] = PlainTurn(id, parent, shown, kind, session=session.id if session else None)
        return made

    def ancestry(self, turn: str) -> list[str]:
        parent = self.turns[turn].parent
        return [*([] if parent is None else self.ancestry(parent)), turn]

    def texts(self, turn: str, events: int | None = None) -> list[str]:
        """What a thread says, up to an event of its last turn."""
        last = self.turns[turn]
        before = [] if last.parent is None else self.texts(last.parent, last.shown)
        return before + [text for text in last.events[:events] if text is not None]

    def events_seen(self, turn: str, head: str, head_events: int | None) -> int | None:
        """How many events of a turn the thread that ends at this head holds; None: all."""
        if head == turn:
            return head_events
        below = self.turns[head]
        assert below.parent is not None, "the turn lies on the thread"
        return self.events_seen(turn, below.parent, below.shown)

    def abandon(self, session: PlainSession) -> None:
        """Somebody takes the session from a writer that went silent."""
        if session.held_by is not None:
            self.turns[session.held_by].close("failed", interrupted=True)
            session.held_by = None

    def erase(self, session: PlainSession, label: str) -> None:
        """What it was called goes too, but for words that another session was called by."""
        for turn in self.own_turns(session):
            turn.erase()
        gone = session.label in session.words
        session.words &= {word for other in self.sessions.values() if other is not session for word in other.words}
        self.aliases = {name: id for name, id in self.aliases.items() if id != session.id or name in session.words}
        assert (session.label != label) == (gone and session.label not in session.words)
        session.status, session.label = "deleted", label

    def own_turns(self, session: PlainSession) -> list[PlainTurn]:
        """What it made, and the thread that it stands on, without what another session's thread has."""
        own = [turn.id for turn in self.turns.values() if turn.session == session.id]
        own += [] if session.head is None else self.ancestry(session.head)
        others = [other for other in self.sessions.values() if other is not session and other.status != "deleted"]
        held = {turn for other in others if other.head is not None for turn in self.ancestry(other.head)}
        return [self.turns[turn] for turn in dict.fromkeys(own) if turn not in held]

    def contained(self, session: PlainSession) -> set[str]:
        return {turn for head, _ in session.history if head is not None for turn in self.ancestry(head)}
