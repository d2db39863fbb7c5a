"""The agents that triage may choose from: those in the room that work for whoever wrote, and public ones that are not.

Private agents that are not in the room are never among them, and neither are system agents. What agents are compared by
is kept, and read again for the agents of which something was recorded since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.chat.triage_scores import AgentScore, CandidateProfile, ProfileIndex, profile_of
from weft.kernel.enums import ParticipantKind, ProgramKind
from weft.kernel.errors import NotFound, Unsupported
from weft.ledger.api import Ledger, is_private, store_of, system_kind_of, users_of_agent
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.views.program_rows import load_program
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.store.port import ReadTxn
from weft.store.sql import Sql

if TYPE_CHECKING:
    from weft.programs.similarity.embedder import Embedder

DESCRIPTION_CHARACTERS = 4_000
"""So much of what an agent says of itself is compared."""
DESCRIBING_FIELDS = ("name", "description", "soul")


class Candidates(Struct, frozen=True, kw_only=True):
    """The agents for one message, and how well each fits it."""

    profiles: dict[str, CandidateProfile]
    present: frozenset[str]
    private: frozenset[str]
    """Of those present the ones that not everybody may read."""
    scores: tuple[AgentScore, ...]
    by_vectors: bool


class CandidateReader:
    """Reads candidates in the name of whoever opened the ledger. Use one object for several messages; not from several
    threads at once."""

    def __init__(self, ledger: Ledger, embedder: Embedder | None = None) -> None:
        self._ledger, self._store, self._programs = ledger, store_of(ledger), Programs(ledger)
        self._index = ProfileIndex()
        self._users: dict[str, frozenset[str]] = {}
        """By private agent for whom it works."""
        self._read_up_to = (-1, -1)
        """The newest event of a program that is taken into account, and how far erasing had come."""
        self._tags_read: tuple[Any, ...] = ()
        """By how many tags agents have and when they got them one sees whether any changed."""
        self._embedder = embedder

    def candidates(self, session: str, erasures: int, authors: Iterable[Sequence[str]], text: str) -> Candidates:
        """For a text in the room that the triage agent answers in by this session. `authors` are the ids of everybody
        in whose name each of the messages was written; `erasures` as the session's standing has it."""
        with self._store.read() as txn:
            self._refresh(txn, erasures)
            room = _room_of(txn.sql, session)
        present = set() if room is None else self._present(room)
        principals = {one for names in authors for one in names} - {DEFAULT_AGENT}
        profiles = self._index.profiles
        allowed = {id for id in profiles if id not in self._users or self._may_answer(id, present, principals)}
        here = frozenset(present) & allowed
        with self._store.read() as txn:
            cosines = self._cosines(txn.sql, text, allowed)
        return Candidates(
            profiles={id: profiles[id] for id in allowed},
            present=here,
            private=here & self._users.keys(),
            scores=tuple(self._index.scores(text, allowed, here, cosines)),
            by_vectors=bool(cosines),
        )

    def _present(self, room: str) -> set[str]:
        participants = self._ledger.rooms.participants(room)
        return {one.node for one in participants if one.kind == ParticipantKind.AGENT}

    def _may_answer(self, private: str, present: set[str], principals: set[str]) -> bool:
        return private in present and self._users[private].issuperset(principals - {private})

    # --- what agents are compared by -----------------------------------------------------------------------------

    def _refresh(self, txn: ReadTxn, erasures: int) -> None:
        (newest,) = txn.sql.one("SELECT coalesce(max(n), 0) FROM program_history") or (0,)
        tags_read = _tag_counts(txn.sql)
        read_up_to, erased = self._read_up_to
        if (newest, erasures, tags_read) == (read_up_to, erased, self._tags_read):
            return
        if erased != erasures or newest < read_up_to:
            self._index, self._users = ProfileIndex(), {}
            programs = self._programs.all(ProgramKind.AGENT)
        else:
            changed = _changed_agents(txn.sql, read_up_to)
            if tags_read != self._tags_read:
                tags = _tags_of_agents(txn.sql)
                changed |= {id for id, one in self._index.profiles.items() if tags.get(id, ()) != one.tags}
            found = [self._dropped(id) for id in changed]
            programs = [program for program in found if program is not None]
        for program in programs:
            self._take_up(txn, program)
        self._read_up_to, self._tags_read = (newest, erasures), tags_read

    def _dropped(self, id: str) -> Program | None:
        """An agent as it is now, where there still is one."""
        self._index.drop(id)
        self._users.pop(id, None)
        try:
            return self._programs.get(id, ProgramKind.AGENT)
        except NotFound:
            return None

    def _take_up(self, txn: ReadTxn, program: Program) -> None:
        row = load_program(txn.sql, program.id)
        if row is None or row.deleted or system_kind_of(txn, row) is not None:
            return
        if is_private(txn, row):
            self._users[row.id] = users_of_agent(txn, row)
        self._index.put(profile_of(row.id, row.name, description_of(program.config), program.tags))

    # --- vectors -------------------------------------------------------------------------------------------------

    def _cosines(self, sql: Sql, text: str, allowed: set[str]) -> Mapping[str, float]:
        """How near agents are to the text that have a vector of the model that comes with Weft. Empty where none has
        one, or the model is not installed."""
        from weft.programs.similarity.minilm import NAME

        rows = sql.all(
            "SELECT v.node, v.floats FROM vector v JOIN program p ON p.id = v.node"
            " WHERE v.model = ? AND p.kind = ? AND p.deleted = 0",
            (NAME, ProgramKind.AGENT.value),
        )
        vectors = [(id, floats) for id, floats in rows if id in allowed]
        embedder = self._loaded_embedder() if vectors and text.strip() else None
        if embedder is None:
            return {}
        import numpy as np

        matrix = np.frombuffer(b"".join(bytes(floats) for _, floats in vectors), np.float32).reshape(len(vectors), -1)
        cosines = matrix @ embedder.embed([text])[0]
        return {id: float(cosine) for (id, _), cosine in zip(vectors, cosines, strict=True)}

    def _loaded_embedder(self) -> Embedder | None:
        if self._embedder is None and find_spec("numpy") is not None:
            from weft.programs.similarity.minilm import MiniLM

            try:
                self._embedder = MiniLM()
            except Unsupported:
                return None
        return self._embedder


def description_of(config: Any) -> str:
    """What an agent's configuration says of it, in words."""
    identity = config.get("identity") if isinstance(config, dict) else None
    fields = identity if isinstance(identity, dict) else {}
    texts = [fields[name] for name in DESCRIBING_FIELDS if isinstance(fields.get(name), str)]
    return "\n".join(texts)[:DESCRIPTION_CHARACTERS]


def _room_of(sql: Sql, session: str) -> str | None:
    row = sql.one("SELECT conversation FROM participant WHERE session = ? ORDER BY n DESC LIMIT 1", (session,))
    return None if row is None else str(row[0])


def _changed_agents(sql: Sql, since: int) -> set[str]:
    rows = sql.all(
        "SELECT DISTINCT h.program FROM program_history h JOIN program p ON p.id = h.program"
        " WHERE h.n > ? AND p.kind = ?",
        (since, ProgramKind.AGENT.value),
    )
    return {id for (id,) in rows}


def _tag_counts(sql: Sql) -> tuple[Any, ...]:
    """How many tags agents have, and when they got them."""
    row = sql.one(
        "SELECT count(*), max(t.tagged_at), sum(t.tagged_at) FROM program p JOIN node_tag t ON t.node = p.id"
        " WHERE p.kind = ? AND p.deleted = 0",
        (ProgramKind.AGENT.value,),
    )
    return () if row is None else tuple(row)


def _tags_of_agents(sql: Sql) -> dict[str, tuple[str, ...]]:
    rows = sql.all(
        "SELECT t.node, t.tag FROM program p JOIN node_tag t ON t.node = p.id WHERE p.kind = ? AND p.deleted = 0",
        (ProgramKind.AGENT.value,),
    )
    tags: dict[str, list[str]] = {}
    for node, tag in rows:
        tags.setdefault(node, []).append(tag)
    return {node: tuple(sorted(labels)) for node, labels in tags.items()}
