"""Who acts, on whose behalf, and what they may do; and whether the ledger itself may act. Nothing here reads or writes.

An authority is a chain of principals, from whoever began to whoever acts now, and their rights. Rights are layers that
all must allow; in a layer, deny wins. `child` and `delegate` only add layers, so no authority made from another allows
more. One matcher compares patterns with rights, for the runtime, the ledger's verbs, programs and the audit.

In a ledger that is not trusted everything can be read and recorded, and nothing acts: no command is started, no
connection opened, no key sent, no program run, no approval taken, nothing imported under its secret. Whatever would do
so asks `LedgerTrust.ensure` first. What says so lies outside the ledger: the library trusts what its caller opens
(`Vouched`); surfaces hand in a trust that asks the person's own store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct, structs

from weft.kernel.errors import InvalidInput, NotAllowed, quoted

LONGEST_CHAIN = 64
TOOL_PREFIX = "tool:"
MACHINE_RIGHT = "weft:machine"
"""To reach folders and containers of the machine that a ledger works on; its owner's, unless a layer takes it away."""
CONFIGURE = "configure"
"""The right to change programs: by itself those of one's own, with a pattern those of others whose names fit."""
OBJECT_PREFIXES = ("session:", "turn:", "content:", "compaction:", "program:", "machine:", f"{CONFIGURE}(")
"""Rights over something that has a name, which may follow as a pattern: `session:read(notes-*)`."""
SENDING = (
    *("turn:*", "content:put", "compaction:*", "resource:*"),
    *("model:*", "provider:*", "tool:*", "code:*", "human:*"),
)
"""What a message takes whose turn runs as it is configured, in a session that is there."""
LOCAL_NAME = "local"
"""The principal that a ledger acts as unless somebody else is named: whoever opened it."""


@lru_cache(maxsize=4096)
def pattern_matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says whether a whole text fits the pattern. `*` stands for any characters, `?` for one, every
    other character for itself. There is no backtracking: a text is walked once for each piece between two `*`."""
    first, *others = (_Piece(piece) for piece in pattern.split("*"))
    if not others:
        return lambda text: len(text) == first.length and first.is_at(text, 0)
    *middle, last = others
    shortest = first.length + last.length + sum(piece.length for piece in middle)

    def matches(text: str) -> bool:
        end = len(text) - last.length
        if len(text) < shortest or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        position = first.length
        for piece in middle:
            start = piece.find(text, position, end)
            if start < 0:
                return False
            position = start + piece.length
        return True

    return matches


class _Piece:
    """A part of a pattern without `*`: it stands for texts of one length."""

    __slots__ = ("_literal", "_regex", "length")

    def __init__(self, piece: str) -> None:
        self.length, self._literal = len(piece), piece
        words = (re.escape(word) for word in piece.split("?"))
        self._regex = re.compile(".".join(words), re.S) if "?" in piece else None

    def is_at(self, text: str, start: int) -> bool:
        if self._regex is None:
            return text.startswith(self._literal, start)
        return self._regex.match(text, start) is not None

    def find(self, text: str, start: int, end: int) -> int:
        if self._regex is None:
            return text.find(self._literal, start, end)
        match = self._regex.search(text, start, end)
        return -1 if match is None else match.start()


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a use of a tool fits the pattern in `NAME(PATTERN)`: `domain:HOST` for URLs of a host, `WORDS:*` and
    `WORDS *` for commands that begin with these words, else by `*` and `?`."""
    if pattern.startswith("domain:"):
        host, wanted = _url_host(subject), pattern[7:]
        return host == wanted or host.endswith(f".{wanted}")
    if pattern.endswith(":*"):
        return subject == pattern[:-2] or subject.startswith(pattern[:-2] + " ")
    if pattern.endswith(" *") and subject == pattern[:-2]:
        return True
    return pattern_matcher(pattern)(subject)


def _url_host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


_TOOL_RULE = re.compile(r"(\*|[A-Za-z_][\w.\-/*?]*)(?:\((.*)\))?", re.S)


def split_tool_rule(text: str) -> tuple[str, str | None] | None:
    """The name and the pattern of `NAME` or `NAME(PATTERN)`; a pattern that covers every use is None. None where the
    text is no rule for tools."""
    rule = _TOOL_RULE.fullmatch(text.strip())
    return None if rule is None else (rule[1], narrowing_pattern(rule[2]))


def narrowing_pattern(text: Any) -> str | None:
    return None if not isinstance(text, str) or text.strip() in ("", "*", "**") else text.strip()


class RuleAction(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_STRICTNESS = (RuleAction.ALLOW, RuleAction.ASK, RuleAction.DENY)


def strictest(actions: Iterable[str]) -> RuleAction | None:
    """What several rules that fit say together: deny wins over ask, ask over allow. None where no rule fits."""
    return max((RuleAction(action) for action in actions), key=_STRICTNESS.index, default=None)


class SandboxFiles(StrEnum):
    """Which files a tool may write to in its sandbox, the widest first."""

    EVERYTHING = "everything"
    WORKSPACE = "workspace"
    READ_ONLY = "read-only"


_SANDBOX_STRICTNESS = tuple(SandboxFiles)


def strictest_files(files: Iterable[SandboxFiles | None]) -> SandboxFiles | None:
    """The narrowest of several; None where none says anything."""
    return max((one for one in files if one is not None), key=_SANDBOX_STRICTNESS.index, default=None)


@lru_cache(maxsize=4096)
def _name_and_use(pattern: str) -> tuple[Callable[[str], bool], Callable[[str], bool] | None]:
    """How a pattern of a layer is compared: its name, and in brackets what it is used on."""
    if pattern.startswith(TOOL_PREFIX) and pattern.endswith(")"):
        rule = split_tool_rule(pattern.removeprefix(TOOL_PREFIX))
        if rule is not None:
            name, use = rule
            return pattern_matcher(TOOL_PREFIX + name), None if use is None else partial(subject_matches, use)
    if pattern.startswith(OBJECT_PREFIXES) and pattern.endswith(")") and "(" in pattern:
        name, _, subject = pattern[:-1].partition("(")
        return pattern_matcher(name), pattern_matcher(subject)
    return pattern_matcher(pattern), None


def covers(pattern: str, right: str, subject: str | None = None) -> bool | None:
    """Whether a pattern covers a right. `tool:NAME(PATTERN)` covers those uses of a tool whose subject fits, and
    `session:read(PATTERN)` sessions whose labels do; None: the subject was not given, so it cannot be said."""
    name_matches, fits_subject = _name_and_use(pattern)
    if not name_matches(right):
        return False
    if fits_subject is None:
        return True
    return None if subject is None else fits_subject(subject)


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """What one grant says, as patterns. Without `allow` it allows nothing."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def allows(self, right: str, subject: str | None = None) -> bool:
        """A pattern that may or may not cover the right denies, and does not allow."""
        actions = [RuleAction.ALLOW for pattern in self.allow if covers(pattern, right, subject)]
        actions += [RuleAction.DENY for pattern in self.deny if covers(pattern, right, subject) is not False]
        return strictest(actions) is RuleAction.ALLOW

    def allows_named(self, right: str, subject: str) -> bool:
        """Whether a pattern with an object allows this: one without says nothing of what is another's."""
        with_object = Layer(tuple(pattern for pattern in self.allow if pattern != right), self.deny)
        return with_object.allows(right, subject)

    def may_allow(self, right: str) -> bool:
        """Whether it allows this on something, or may: what it is used on is not known yet."""
        if any(covers(pattern, right) is True for pattern in self.deny):
            return False
        if right.endswith(":read") and not any(pattern.partition("(")[0].endswith(":read") for pattern in self.allow):
            return True
        return any(covers(pattern, right) is not False for pattern in self.allow)

    def allows_reading(self, right: str, subject: str | None = None) -> bool:
        """The same for a right to read. A layer that allows no right to read by its name limits changes alone."""
        if any(pattern.partition("(")[0].endswith(":read") for pattern in self.allow):
            return self.allows(right, subject)
        return all(covers(pattern, right, subject) is False for pattern in self.deny)


class Rights(Struct, frozen=True, forbid_unknown_fields=True):
    """An intersection of layers. Without any, everything is allowed: nobody has limited it yet."""

    layers: tuple[Layer, ...] = ()

    def allows(self, right: str, subject: str | None = None) -> bool:
        """`subject` is what the right is used on: the command that a shell would run, the label of a session."""
        return all(layer.allows(right, subject) for layer in self.layers)

    def may_allow(self, right: str) -> bool:
        """Whether every layer allows this on something, or may: what a caller is let in by, before it is known what the
        right is used on."""
        return all(layer.may_allow(right) for layer in self.layers)

    def allows_reading(self, right: str, subject: str | None = None) -> bool:
        return all(layer.allows_reading(right, subject) for layer in self.layers)

    def narrowed(self, other: Rights) -> Rights:
        """What both allow."""
        if not isinstance(other, Rights):
            raise InvalidInput(f"rights are {quoted(other)}", "make them with weft.rights(…)")
        return Rights(tuple(dict.fromkeys((*self.layers, *other.layers))))


EVERYTHING = Rights()
EVERYTHING_LAYER = Layer(("*",))
"""A grant that limits nothing."""


def rights(allow: Iterable[str] = ("*",), deny: Iterable[str] = ()) -> Rights:
    """One layer: all that fits a pattern of `allow` and none of `deny`."""
    return Rights((Layer(_checked_patterns(allow, "allow"), _checked_patterns(deny, "deny")),))


def _checked_patterns(patterns: Any, what: str) -> tuple[str, ...]:
    listed = () if isinstance(patterns, str) else tuple(patterns)
    if isinstance(patterns, str) or not all(isinstance(pattern, str) and pattern for pattern in listed):
        raise InvalidInput(f"{what} is not a list of patterns", "give texts such as 'tool:*' or 'model:claude-*'")
    return tuple(sorted(set(listed)))


class PrincipalKind(StrEnum):
    """`program` is an agent or a person of whom only the name is known; the ledger looks up which of them it is."""

    HUMAN = "human"
    AGENT = "agent"
    SESSION = "session"
    SYSTEM = "system"
    PROGRAM = "program"


class Principal(Struct, frozen=True, forbid_unknown_fields=True):
    """Who acts: the name or the ulid of an agent, a person or a session, or `local`."""

    kind: PrincipalKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class Authority(Struct, frozen=True, forbid_unknown_fields=True):
    """In whose name something is done, and with which rights. `chain` runs from whoever began to whoever acts now."""

    chain: tuple[Principal, ...]
    rights: Rights = EVERYTHING

    def __post_init__(self) -> None:
        if not 0 < len(self.chain) <= LONGEST_CHAIN:
            raise InvalidInput(
                f"a chain of {len(self.chain)} principals",
                f"it names at least who acts, and at most {LONGEST_CHAIN}: something may delegate in a circle",
            )

    @property
    def principal(self) -> Principal:
        return self.chain[-1]

    @property
    def on_behalf_of(self) -> tuple[Principal, ...]:
        """Everybody in whose name the principal acts, the nearest first."""
        return self.chain[-2::-1]

    @property
    def is_local(self) -> bool:
        """Whether the ledger's owner acts alone. Their events name the agent they let answer, and nobody else."""
        return len(self.chain) == 1 and self.principal.id == LOCAL_NAME

    @property
    def is_unlimited(self) -> bool:
        """Whether this is whoever opened the ledger, alone, with all rights: nothing needs to be looked up."""
        return not self.rights.layers and self.is_local

    def child(self, rights: Rights = EVERYTHING) -> Authority:
        """The same principals, with what these rights leave of theirs."""
        return structs.replace(self, rights=self.rights.narrowed(rights))

    def delegate(self, principal: Principal, rights: Rights = EVERYTHING) -> Authority:
        """Somebody else, acting on behalf of everybody here, never with more rights than they have."""
        return Authority((*self.chain, principal), self.rights.narrowed(rights))

    def allows(self, right: str, subject: str | None = None) -> bool:
        return self.rights.allows(right, subject)

    def ensure_allowed(self, right: str, subject: str | None = None) -> None:
        if not self.allows(right, subject):
            raise self.refusal(right)

    def refusal(self, right: str, what: str = "", hint: str = "") -> NotAllowed:
        return NotAllowed(right, [str(principal) for principal in reversed(self.chain)], what, hint)


LOCAL = Authority((Principal(PrincipalKind.SYSTEM, LOCAL_NAME),))


def authority_of(who: Any) -> Authority:
    """An authority as it is, or that of an agent or a person by name or ulid; `local` is the ledger's owner."""
    if isinstance(who, Authority):
        return who
    if not isinstance(who, str) or not who:
        raise InvalidInput(f"who acts is {quoted(who)}", "give an Authority, or the name of an agent or a person")
    return LOCAL if who == LOCAL_NAME else Authority((Principal(PrincipalKind.PROGRAM, who),))


IMPORTING = "import sessions, which its maker's secret would name"
"""What an import does in a ledger that somebody else made: they could tell by its names what was imported."""


class LedgerTrust(Protocol):
    """What the person who opened one ledger remembers of it, outside of it."""

    @property
    def is_trusted(self) -> bool:
        """Whether the ledger may act."""

    def ensure(self, action: str) -> None:
        """Raises NotTrusted where it may not; `action` says what would be done, as in "run a program"."""

    def pinned_replica(self, address: str) -> str | None:
        """The replica that answered at an address when it was first spoken to from this ledger."""

    def pin_replica(self, address: str, replica: str) -> None:
        """From now on only this replica is expected at the address."""

    def unpin_replica(self, address: str) -> None:
        """The next replica that answers there is taken for the first."""


class Vouched:
    """The caller of the library vouches for the ledger. Pins are kept as long as it is open."""

    is_trusted = True

    def __init__(self) -> None:
        self._replicas: dict[str, str] = {}

    def ensure(self, action: str) -> None:
        """Everything is allowed."""

    def pinned_replica(self, address: str) -> str | None:
        return self._replicas.get(address)

    def pin_replica(self, address: str, replica: str) -> None:
        self._replicas[address] = replica

    def unpin_replica(self, address: str) -> None:
        self._replicas.pop(address, None)
