"""What a bundle that was verified proves, and what it does not."""

from __future__ import annotations

from msgspec import Struct

from weft.ledger.read.thread_events import ThreadHead

PROVES = (
    "no event, and no content that is here, has changed since the digests of its threads were known",
    "each thread is whole, from its root to its head, in this order",
)
DOES_NOT_PROVE = (
    "that the times are true: the ledger's own clock wrote them",
    "that what models, tools and people are said to have said was said by them",
    "that nothing else happened: other threads, and what came later, are not here",
)
VISIBLE = (
    "times, models, tool names, token counts, ids, statuses and the order of all messages and calls stay visible,"
    " also of what is withheld"
)
LINKED = "that chains joined by a link belong together: a link is what an importer found, and in no digest"
EXCERPT = (
    "that late results, substitutions and tombstones are all there are: they stand alone, without the stream they are"
    " from"
)


class ThreadProof(Struct, frozen=True, kw_only=True):
    """One thread of a bundle."""

    turn_id: str
    digest: str
    turns: int
    """How many turns its chain has; those before a link are not counted."""


class AbsentContent(Struct, frozen=True, kw_only=True):
    """A place whose content is not in the bundle."""

    ref: str
    why: str
    """`withheld`; `erased`; `missing`: the ledger itself did not have it; `outside`: no part of the thread."""
    stream: str
    message_id: str | None
    what: str
    """The kind of event, and where in it."""


class SignedBy(Struct, frozen=True, kw_only=True):
    """A signature that holds."""

    key: str
    name: str | None
    """Of the key, where it is trusted or one's own."""
    trusted: bool


class BundleReport(Struct, frozen=True, kw_only=True):
    """A bundle whose every hash and link holds."""

    digest: str
    """Of all its lines but the signatures: the name of what it says."""
    threads: tuple[ThreadProof, ...]
    turns: int
    rooms: int
    """Conversations that go along."""
    events: int
    contents: int
    absent: dict[str, int]
    """How many contents are not here, by why."""
    places: tuple[AbsentContent, ...]
    """Where, a thousand of them at most."""
    signatures: tuple[SignedBy, ...]
    links: int
    excerpts: int
    """Late results and tombstones out of a ledger's own stream."""
    first_time: str | None
    last_time: str | None
    heads: tuple[ThreadHead, ...]

    @property
    def proves(self) -> tuple[str, ...]:
        signed = [f"it was signed with the key {each.key[:16]}…" for each in self.signatures]
        return (*PROVES, *signed)

    @property
    def does_not_prove(self) -> tuple[str, ...]:
        unsigned = () if self.signatures else ("who made it: it is unsigned",)
        linked = (LINKED,) if self.links else ()
        excerpts = (EXCERPT,) if self.excerpts else ()
        return (*unsigned, *DOES_NOT_PROVE, *linked, *excerpts)
