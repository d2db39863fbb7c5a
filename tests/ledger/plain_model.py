"""A ledger as plain dicts and lists: what the state machine expects of the real one."""

from dataclasses import dataclass, field


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

    @property
    def closed(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def open_calls(self) -> list[str]:
        return [call for call, outcome in self.calls.items() if outcome is None]

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
        made = self.sessions[id] = PlainSession(id, label)
        return made

    def add_turn(self, id: str, parent: str | None, events: int | None, kind: str = "normal") -> PlainTurn:
        """A turn that grows from its parent's end, or from the event where a head stands inside it."""
        above = None if parent is None else self.turns[parent]
        shown = events if events is not None or above is None or above.closed else len(above.events)
        made = self.turns[id] = PlainTurn(id, parent, shown, kind)
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

    def contained(self, session: PlainSession) -> set[str]:
        return {turn for head, _ in session.history if head is not None for turn in self.ancestry(head)}
