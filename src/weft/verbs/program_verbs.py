"""Programs of every kind: listed, shown, compared, configured, published and retired; and tags, on them and on
whatever else has an id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from weft.kernel.errors import NotFound
from weft.kernel.typed_names import shell_word
from weft.programs.program_records import Difference, Program, ProgramChange, TaggedNode
from weft.verbs.answers import Listing, NodeTags
from weft.verbs.declaration import (
    Column,
    ExpectedVersion,
    Fields,
    OpenMode,
    Reason,
    RetryKey,
    Shown,
    Table,
    VerbGroup,
    arg,
    fields_set,
    opt,
    program,
    verb,
)

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

CONFIGURE = "program:configure"
TAG = "node:tag"

ProgramName = Annotated[
    str, arg("A program: its name, its id, or @(name); name:2 is its second configuration.", names=program())
]
ProgramKind = Literal["code", "provider", "model", "session", "agent", "task", "information", "human"]

program_group = VerbGroup(
    "program",
    """List, show, compare and retire programs of every kind.

    NAME is a program's name, its id, or @(name); name:2 is its second configuration.
    """,
)


# --- Programs of every kind: looked at.


@verb("program list")
def program_list(
    ledger: Ledger,
    kind: Annotated[ProgramKind | None, opt("Only programs of this kind.", "--type")] = None,
    deleted: Annotated[bool, opt("Also those that were deleted.", "--all")] = False,
) -> Listing[Program]:
    """List programs."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).all(kind, deleted=deleted))


@verb("program get")
def program_get(ledger: Ledger, name: ProgramName) -> Program:
    """Show a program, or with NAME:VERSION an earlier configuration of it."""
    from weft.programs import Programs

    return Programs(ledger).get(name)


@verb("program history")
def program_history(ledger: Ledger, name: ProgramName) -> Listing[ProgramChange]:
    """Show everything that happened to a program, the newest first."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).history(name))


@verb("program diff")
def program_diff(
    ledger: Ledger,
    name: ProgramName,
    before: Annotated[int | None, arg("The one version.")] = None,
    after: Annotated[int | None, arg("The other version.")] = None,
) -> Listing[Difference]:
    """Show where two versions of a program's configuration differ: by default the last two."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).diff(name, before, after))


# --- Programs of every kind: changed.


@verb("program configure", right=CONFIGURE, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def program_configure(
    ledger: Ledger,
    name: ProgramName,
    fields: Fields = None,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of a program's configuration; null takes one away."""
    from weft.programs import Programs

    changes = fields_set({}, fields)
    return Programs(ledger).change(name, changes, expected=expected, reason=reason, key=retry_key)


@verb("program revert", right=CONFIGURE, method="programs.revert", opens=OpenMode.WRITING, takes_actor=True)
def program_revert(
    ledger: Ledger,
    name: ProgramName,
    version: Annotated[int, arg("The version that it had.")],
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Return a program to an earlier version of its configuration."""
    from weft.programs import Programs

    return Programs(ledger).revert(name, version, expected=expected, reason=reason, key=retry_key)


@verb("program publish", right=CONFIGURE, method="programs.publish", opens=OpenMode.WRITING, takes_actor=True)
def program_publish(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Publish a draft."""
    from weft.programs import Programs

    return Programs(ledger).publish(name, reason=reason, key=retry_key)


@verb("program deprecate", right=CONFIGURE, method="programs.deprecate", opens=OpenMode.WRITING, takes_actor=True)
def program_deprecate(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Mark a program as deprecated."""
    from weft.programs import Programs

    return Programs(ledger).deprecate(name, reason=reason, key=retry_key)


@verb("program delete", right=CONFIGURE, method="programs.delete", opens=OpenMode.WRITING, takes_actor=True)
def program_delete(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Hide a program and free its name; its history stays."""
    from weft.programs import Programs

    return Programs(ledger).delete(name, reason=reason, key=retry_key)


# --- Tags.

NodeName = Annotated[str, arg("A node: a program, a session, a turn, or another by KIND:NAME.", names=program())]

tag_group = VerbGroup(
    "tag",
    """Tag nodes of any kind: programs, sessions, rooms, turns, messages, events, resources.

    NODE is a program, a session, a turn, a message or an event, or any node that `weft graph node` shows, as KIND:NAME
    where its name alone could be another one's.
    """,
)


@verb("tag add", right=TAG, method="programs.add_tags", opens=OpenMode.WRITING, takes_actor=True)
def tag_add(
    ledger: Ledger, node: NodeName, tags: Annotated[tuple[str, ...], arg("The tags.")], retry_key: RetryKey = None
) -> NodeTags:
    """Add tags."""
    from weft.programs import Programs

    return NodeTags(node=node, tags=Programs(ledger).add_tags(node, *tags, key=retry_key))


@verb("tag remove", right=TAG, method="programs.remove_tags", opens=OpenMode.WRITING, takes_actor=True)
def tag_remove(
    ledger: Ledger, node: NodeName, tags: Annotated[tuple[str, ...], arg("The tags.")], retry_key: RetryKey = None
) -> NodeTags:
    """Take tags away.

    Where one of them is not there, none is taken. With a retry key those that are not there are passed over: a first
    try may have taken them.
    """
    from weft.programs import Programs
    from weft.programs.lookups import checked_tags

    programs = Programs(ledger)
    there = programs.tags(node)
    missing = [tag for tag in checked_tags(tags) if tag not in there] if retry_key is None else []
    if missing:
        raise NotFound(f"tag on {node}", missing[0], f"`weft tag list {shell_word(node)}` lists its tags")
    return NodeTags(node=node, tags=programs.remove_tags(node, *tags, key=retry_key))


@verb("tag list")
def tag_list(ledger: Ledger, node: NodeName) -> NodeTags:
    """List the tags of a node."""
    from weft.programs import Programs

    return NodeTags(node=node, tags=Programs(ledger).tags(node))


TAGGED = Table(
    (
        Column("kind"),
        Column("node", "name", Shown.LABEL),
        Column("tags", lambda node: " ".join(node.tags)),
    ),
    "nothing has these tags; add one with `weft tag add NODE TAG`",
)


@verb("nodes", table=TAGGED)
def nodes(
    ledger: Ledger,
    tags: Annotated[tuple[str, ...], opt("Only what has this tag; repeatable.", "--tag", metavar="TAG")],
) -> Listing[TaggedNode]:
    """List everything that has a tag.

    With several, what has all of them.
    """
    from weft.programs import Programs

    return Listing(items=Programs(ledger).tagged(*tags))
