"""Sessions by the beginnings of their labels: what people type of a name that another program made.

An imported label may be a UUID, a subagent's two of them with a slash between. A beginning names a session if it fits
one label only; the subagents below a session (`<label>/…`) do not make its own beginning ambiguous. Each part between
slashes may be cut short by itself: `4f9c2a1b/agent-03` is fine.
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
    if len(text) < SHORTEST:
        return None
    first = text.partition("/")[0]
    low = first if len(first) >= SHORTEST else text
    rows = [SessionRow(*row) for row in sql.all(f"{SESSION.select} WHERE label >= ? AND label < ?", (low, low + LAST))]
    rows = [row for row in rows if may_read(row)]
    live = {row.label: row for row in rows if row.status != "deleted"}
    labels = [label for label in fitting({row.label for row in rows}, text) if label in live]
    if not labels or any(row.label == text for row in rows):
        return None
    if len(labels) > 1:
        more = [f"{len(labels) - SHOWN} more"] if len(labels) > SHOWN else []
        raise AmbiguousName(text, [*labels[:SHOWN], *more])
    return live[labels[0]]


def fitting(labels: Iterable[str], text: str) -> list[str]:
    """The labels that a beginning could mean, without what lies below another one of them."""
    begun = {label for label in labels if _begins(label, text)}
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
        is_long = len(part) > (LONG if any(map(str.isdigit, part)) else TOO_LONG)
        made[part] = part[:length] if is_long else part
    return made


def _common(left: str, right: str) -> int:
    """How many characters two words share from the beginning."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
