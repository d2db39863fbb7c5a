"""Sessions by the beginnings of their labels: what people type of a name that another program made.

An imported label may be a UUID, a subagent's two of them with a slash between. A beginning names a session if it fits
one label only; the subagents below a session (`<label>/…`) do not make its own beginning ambiguous. Each part between
slashes may be cut short by itself: `4f9c2a1b/agent-03` is fine. Listings show imported labels cut short, so that the
beginning of one also names it where any other name would make a new session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from weft.kernel.errors import AmbiguousName
from weft.kernel.labels import normal_form
from weft.ledger.views.rows import SESSION, SessionRow
from weft.store.sql import Sql

SHORTEST = 6
COMFORTABLE = 8
LONG = 16
TOO_LONG = 24
SHOWN = 8
LAST = "\U0010ffff"


def find_by_beginning(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> SessionRow | None:
    """The one session whose label begins so; raises AmbiguousName where it could be several. Sessions that cannot be
    read do not count.

    The label of a deleted session is no beginning of another one, nor of what lies below it: whoever deletes twice
    must not hit somebody else.
    """
    text = normal_form(text)
    rows = _beginning_so(sql, text, may_read)
    live = {row.label: row for row in rows if row.status != "deleted"}
    labels = [label for label in fitting({row.label for row in rows}, text) if label in live]
    if not labels or any(row.label == text for row in rows):
        return None
    return live[_only(text, labels)]


def find_shortened(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> SessionRow | None:
    """The one imported session whose label begins so, for what would make a new session otherwise. A label that
    listings show whole is not meant by its beginning: somebody may want a session of that name."""
    text = normal_form(text)
    rows = _beginning_so(sql, text, may_read)
    live = {row.label: row for row in rows if row.status != "deleted" and row.origin}
    labels = [label for label in fitting(live, text) if _is_cut(label, text)]
    if not labels or any(row.label == text for row in rows):
        return None
    return live[_only(text, labels)]


def _beginning_so(sql: Sql, text: str, may_read: Callable[[SessionRow], bool]) -> list[SessionRow]:
    if len(text) < SHORTEST:
        return []
    first = text.partition("/")[0]
    low = first if len(first) >= SHORTEST else text
    rows = (SessionRow(*row) for row in sql.all(f"{SESSION.select} WHERE label >= ? AND label < ?", (low, low + LAST)))
    return [row for row in rows if may_read(row)]


def _only(text: str, labels: list[str]) -> str:
    """The one label that there is; raises AmbiguousName where there are several."""
    if len(labels) > 1:
        more = [f"{len(labels) - SHOWN} more"] if len(labels) > SHOWN else []
        raise AmbiguousName(text, [*labels[:SHOWN], *more])
    return labels[0]


def _is_cut(label: str, text: str) -> bool:
    """Whether the text is this label as a listing shortens it: part by part, and only parts that are long."""
    parts, words = label.split("/"), text.split("/")
    return len(parts) == len(words) and all(
        part == word or (part.startswith(word) and len(word) >= SHORTEST and _is_long(part))
        for part, word in zip(parts, words, strict=True)
    )


def shown_labels(sql: Sql, sessions: Iterable[SessionRow]) -> dict[str, str]:
    """By label what a listing shows of each of these sessions: an imported one's label as short as it can be typed,
    any other as it is."""
    rows = [row for row in sessions if row.status != "deleted"]
    numbers = {row.n for row in rows}
    aliases = [alias for alias, session in sql.all("SELECT alias, session FROM alias") if session in numbers]
    short = short_labels([*(row.label for row in rows), *aliases])
    return {row.label: short[row.label] if row.origin else row.label for row in rows}


def fitting(labels: Iterable[str], text: str) -> list[str]:
    """The labels that a beginning could mean, without what lies below another one of them. Between slashes a word that
    is written out wins over one that is cut short."""
    begun = {label for label in labels if _begins(label, text)}
    for depth, word in enumerate(text.split("/")):
        begun = {label for label in begun if label.split("/")[depth : depth + 1] == [word]} or begun
    return sorted(label for label in begun if not any(above in begun for above in _above(label)))


def _above(label: str) -> Iterator[str]:
    parts = label.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _begins(label: str, text: str) -> bool:
    if label.startswith(text):
        return True
    parts, typed = label.split("/"), text.split("/")
    return len(parts) == len(typed) and all(
        bool(word) and part.startswith(word) for part, word in zip(parts, typed, strict=True)
    )


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Every label as short as it can be typed: of each long id in it only what sets it apart from its neighbours."""
    below: dict[str, set[str]] = {}
    paths = {label: label.split("/") for label in labels}
    for parts in paths.values():
        for depth, part in enumerate(parts):
            below.setdefault("/".join(parts[:depth]), set()).add(part)
    short = {above: _short_parts(sorted(parts)) for above, parts in below.items()}
    return {
        label: "/".join(short["/".join(parts[:depth])][part] for depth, part in enumerate(parts))
        for label, parts in paths.items()
    }


def _short_parts(parts: list[str]) -> dict[str, str]:
    made = {}
    for i, part in enumerate(parts):
        beside = (*parts[max(0, i - 1) : i], *parts[i + 1 : i + 2])
        length = max([COMFORTABLE, *(_common(part, other) + 1 for other in beside)])
        while length < len(part) and not part[length - 1].isalnum():
            length += 1
        made[part] = part[:length] if _is_long(part) else part
    return made


def _is_long(part: str) -> bool:
    """Whether a listing cuts this part of a label short."""
    return len(part) > (LONG if any(map(str.isdigit, part)) else TOO_LONG)


def _common(left: str, right: str) -> int:
    """How many characters two words share from the beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
