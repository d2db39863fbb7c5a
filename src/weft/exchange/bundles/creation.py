"""Making a bundle: the facts of some threads in order of arrival, each content right before the
event that names it.

Messages, tool calls, turns and contents are withheld by name, or where they match a pattern; words
of a withheld text are looked for in what is disclosed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.bundles import verification
from weft.exchange.bundles.keys import Signer
from weft.exchange.bundles.verification import BundleReport, BundleWriter, KnownNames, unpacked_lines, verify_bundle
from weft.kernel.clock import is_ulid, offset
from weft.kernel.contents import json_value
from weft.kernel.errors import (
    ContentGone,
    FactDamaged,
    InvalidBundle,
    InvalidInput,
    NotApplicable,
    NotFound,
    StoreError,
    WithheldShows,
    quoted,
)
from weft.kernel.events import event_id
from weft.kernel.foreign_input import is_digest
from weft.kernel.message_text import folded, pattern
from weft.ledger.api import Ledger, LedgerBase, calls_of, open_thread_facts
from weft.ledger.arguments import checked_file, checked_path, path_error
from weft.ledger.read.thread_events import ThreadFacts
from weft.ledger.upkeep.facts_file import event_line
from weft.ledger.upkeep.ledger_copy import BUNDLE, remembered
from weft.ledger.views.rows import load_turn
from weft.store.fact_log import ContentHead
from weft.store.private_files import aside_of, open_aside, put_in_place

# --- Do words of a withheld text stand in what is disclosed?

RUN = 6
DISTINCTIVE_LETTERS, LONG, PLAIN_VALUE = 6, 20, 8
_escape = re.compile(r"\\(?:[nrtbf\"'/\\]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2})")


class WithheldWords:
    """The runs of words of some withheld texts."""

    def __init__(self) -> None:
        self._by_length: dict[int, set[tuple[str, ...]]] = {}
        self._distinctive_words: set[str] = set()
        self._sizes: set[int] = set()
        self._wordless: set[str] = set()

    def add(self, data: bytes) -> None:
        text = readable(data)
        if text is None:
            return
        value = _json(text)
        if isinstance(value, dict | list):
            for string in _strings(value):
                self._add(string, is_value=True)
        else:
            self._add(value if isinstance(value, str) else text)

    def _add(self, text: str, is_value: bool = False) -> None:
        words = list(words_of(text))
        distinctive = {
            word for word in words if _is_distinctive(word) or (len(words) == 1 and len(word) >= DISTINCTIVE_LETTERS)
        }
        self._distinctive_words |= distinctive
        self._sizes |= {len(word) for word in distinctive}
        if len(words) >= RUN:
            runs = self._by_length.setdefault(RUN, set())
            runs.update(tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1))
        elif len(words) > 1 or (words and not (is_value and len(words[0]) < PLAIN_VALUE)):
            self._by_length.setdefault(len(words), set()).add(tuple(words))
        elif text.strip() and not words:
            self._wordless.add(text.strip())

    def found_in(self, text: str) -> bool:
        """Does one of them stand in this text?"""
        return any(self._appears(spelled) for spelled in spellings(text))

    def _appears(self, text: str) -> bool:
        if text.strip() in self._wordless:
            return True
        lengths = sorted(self._by_length)
        last = deque[str](maxlen=RUN)
        for word in words_of(text):
            last.append(word)
            if self._holds_distinctive_word(word):
                return True
            recent = tuple(last)
            if any(n <= len(recent) and recent[-n:] in self._by_length[n] for n in lengths):
                return True
        return False

    def _holds_distinctive_word(self, word: str) -> bool:
        """Does a distinctive word stand in this one?"""
        return word in self._distinctive_words or any(
            word[i : i + size] in self._distinctive_words for size in self._sizes for i in range(len(word) - size + 1)
        )


def words_of(text: str) -> Iterator[str]:
    return (folded(match[0]) for match in pattern("[U][M]*|[S][SM]*").finditer(text))


def _is_distinctive(word: str) -> bool:
    return len(word) >= LONG or (len(word) >= DISTINCTIVE_LETTERS and any(letter.isdigit() for letter in word))


def readable(data: bytes) -> str | None:
    """Its text; None where it is none."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def spellings(text: str) -> Iterator[str]:
    """The text as it stands, as JSON reads, and as it reads where something in it was escaped once more."""
    yield text
    value = _json(text)
    unpacked = text if value is None else "\n".join(_strings(value))
    if value is not None:
        yield unpacked
    if "\\" in unpacked:
        yield _escape.sub(_unescaped, unpacked)


def _unescaped(match: re.Match[str]) -> str:
    spelled = match[0]
    return chr(int(spelled[2:], 16)) if spelled[1] in "ux" else " "


def _json(text: str) -> Any:
    """The value that a text spells, where it may be JSON at all."""
    if not text.lstrip()[:1].startswith(("{", "[", '"')):
        return None
    try:
        return json_value(text.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _strings(value: Any) -> Iterator[str]:
    """Names and values, in order."""
    waiting: list[Any] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [inner for pair in reversed(item.items()) for inner in reversed(pair)]
        elif isinstance(item, list):
            waiting += reversed(item)
        elif item is not None and not isinstance(item, bool):
            yield str(item)


def matches(pattern: re.Pattern[str], text: str) -> bool:
    return any(map(pattern.search, spellings(text)))


def windows(chunks: Iterable[bytes], size: int, overlap: int) -> Iterator[str]:
    """A content as texts that can be looked at one by one: whole, or cut where it is large, with what is near a cut
    in both."""
    buffered = b""
    for chunk in chunks:
        buffered += chunk
        if len(buffered) > size:
            yield buffered.decode("utf-8", "replace")
            buffered = buffered[-overlap:]
    if (text := readable(buffered)) is not None:
        yield text


# --- What is withheld from a bundle: messages, tool calls, turns and contents by name, and whatever matches a pattern.

WINDOW, OVERLAP = 8 * 1024 * 1024, 64 * 1024
NAMES = ("id", "tool_call_id", "call_id", "native", "model", "name", "tool", "server", "code", "list", "provider")
"""Fields that say by what something is called; they are not what was said."""
LABELS = ("session_created", "session_renamed")


class Withholding:
    """Decides of each content of some threads whether it goes out."""

    def __init__(self, facts: ThreadFacts, ledger: LedgerBase, names: Sequence[str], matching: str | None) -> None:
        self._facts = facts
        self._messages: set[str] = set()
        self._turns: set[str] = set()
        self._calls: set[str] = set()
        self._numbered_calls: set[tuple[str, int]] = set()
        self.refs: set[str] = set()
        self.withheld_words = WithheldWords()
        self._pattern = _compiled(matching)
        self._asked: dict[str, str] = {}
        """What each name led to, until that is met in the threads."""
        for name in names:
            self._resolve(ledger, name)
        if names or matching is not None:
            self._gather()

    @property
    def is_asked(self) -> bool:
        return bool(self.refs)

    def why(self, event: dict[str, Any], path: str, ref: str) -> str | None:
        """Why a content does not go out where it first stands; None if it does."""
        if ref in self.refs:
            return verification.WITHHELD
        return verification.OUTSIDE if _is_outside(event, path) and not self._is_taken(event, path) else None

    def _is_taken(self, event: dict[str, Any], path: str) -> bool:
        """Is it part of a message that a turn of these threads took out of the inbox? Then it is the turn's, too."""
        if event.get("kind") != "message_admitted" or not path.startswith("parts"):
            return False
        query = "SELECT turn FROM inbox WHERE message = ? AND turn IS NOT NULL"
        row = self._facts.txn.sql.fetch_row(query, (event.get("message"),))
        return row is not None and self._facts.contains_whole(row[0])

    def _resolve(self, ledger: LedgerBase, name: str) -> None:
        txn = self._facts.txn
        if is_digest(name) and txn.facts.find_content(bytes.fromhex(name)) is not None:
            self.refs.add(name)
            self._asked[name] = name
            return
        if is_ulid(name) and load_turn(txn.sql, name) is None:
            self._messages.add(name)
            self._asked[name] = name
            return
        turn, _, call = name.partition(":")
        row = ledger._resolve(txn, turn if call else name).turn
        if not call:
            self._turns.add(row.id)
            self._asked[row.id] = name
            return
        matching_calls = [
            stored_call
            for stored_call, tool_call in calls_of(txn, row)
            if call in (tool_call.call_id, tool_call.id.partition(":")[2])
        ]
        if not matching_calls:
            raise NotFound("tool call", name)
        for stored_call in matching_calls:
            self._calls.add(bytes(stored_call.event).hex())
            self._numbered_calls.add((row.id, stored_call.seq))
            self._asked[bytes(stored_call.event).hex()] = name

    def _gather(self) -> None:
        with KnownNames() as looked:
            for _, line in self._facts.events():
                id, event = event_id(line), verification.parsed(line)
                for path, ref in verification.references(event):
                    if self._is_named(id, event, path) or self._is_matched(event, path, ref, looked):
                        self.refs.add(ref)
                    if ref in self.refs:
                        self._asked.pop(ref, None)
        if self._asked:
            raise NotFound("such part of these threads", min(self._asked.values()), "name what the threads contain")
        for ref in self.refs:
            self._learn(ref)

    def _is_named(self, id: str, event: dict[str, Any], path: str) -> bool:
        """Is this place of an event part of something that is to be withheld? Notes which name that was."""
        if path.rpartition(".")[2] in NAMES and event.get("kind") != "session_created":
            return False
        for name in _places(id, event, path):
            if name in self._messages or name in self._turns or name in self._calls:
                self._asked.pop(name, None)
                return True
        seen_call = _seen_call(event, path)
        return seen_call in self._numbered_calls

    def _is_matched(self, event: dict[str, Any], path: str, ref: str, looked: KnownNames) -> bool:
        """Is the pattern found in this content, which is looked at once?"""
        if self._pattern is None or ref in self.refs or _is_outside(event, path) or looked.get(ref) is not None:
            return False
        looked.add(ref, "")
        return any(matches(self._pattern, text) for text in self.texts(ref))

    def texts(self, ref: str) -> Iterator[str]:
        """A content's text; in parts where it is large, nothing where it is gone."""
        if (head := self._head(ref)) is not None:
            yield from windows(self._facts.txn.facts.stream_content(head.n), WINDOW, OVERLAP)

    def _head(self, ref: str) -> ContentHead | None:
        try:
            return self._facts.content(ref)
        except ContentGone:
            return None

    def _learn(self, ref: str) -> None:
        for text in self.texts(ref):
            self.withheld_words.add(text.encode("utf-8", "surrogatepass"))


def _places(id: str, event: dict[str, Any], path: str) -> Iterator[Any]:
    """The turn, the message and the call that a place of an event belongs to."""
    kind, _, stream = str(event.get("stream")).partition(":")
    if kind == "run":
        yield stream
    if kind == "conversation":
        yield event.get("message")
    call = event.get("call")
    yield id if event.get("kind") == "tool_call" else call.get("event_id") if isinstance(call, dict) else None
    message = event.get(path.partition(".")[0])
    if isinstance(message, dict):
        yield message.get("id")
    if event.get("kind") == "sighting" and event.get("turn"):
        yield event["turn"]
        if (k := _numbered(event, path, "messages")) is not None:
            yield offset(event["turn"], k + 1)


def _seen_call(event: dict[str, Any], path: str) -> tuple[str, int] | None:
    k = _numbered(event, path, "calls") if event.get("kind") == "sighting" else None
    return None if k is None else (str(event.get("turn")), k)


def _numbered(event: dict[str, Any], path: str, field: str) -> int | None:
    """Which message or call of its turn an entry of a sighting is about."""
    match = re.match(rf"{field}\[(\d+)\]", path)
    k = event[field][int(match[1])].get("k") if match else None
    return k if isinstance(k, int) else None


def _is_outside(event: dict[str, Any], path: str) -> bool:
    if event.get("kind") == "sighting":
        return path in ("raw", "file")
    if str(event.get("stream")).startswith("program:"):
        return path != "name"
    return str(event.get("stream")).startswith("session:") and event.get("kind") not in LABELS


def _compiled(expression: str | None) -> re.Pattern[str] | None:
    try:
        return None if expression is None else re.compile(expression)
    except re.error as error:
        raise InvalidInput(f"{quoted(expression)} is no regular expression: {error}", "mend the pattern") from error


# --- Making a bundle: the facts of some threads in order of arrival, each content right before the event that names
# it.

LEAKS = 20
Report = Callable[[int, int], None]


class CreatedBundle(Struct, frozen=True, kw_only=True):
    """A bundle that was made, and verified."""

    path: str
    bytes: int
    report: BundleReport
    shows: tuple[str, ...]
    """Places where words of withheld texts stand all the same, by the maker's will."""


def create_bundle(
    ledger: Ledger,
    threads: Sequence[str],
    target: str | Path,
    *,
    rooms: Sequence[str] = (),
    withhold: Sequence[str] = (),
    matching: str | None = None,
    signers: Sequence[Signer] = (),
    force: bool = False,
    progress: Report | None = None,
) -> CreatedBundle:
    """Write the threads that end at these turns or sessions to a new file. `rooms` names conversations that go along
    whole: what was said in them, the names of whoever takes part, and the threads of the agents that answered there.

    `withhold` names messages, tool calls (`turn:call`), turns or contents whose texts stay out, and `matching` is a
    regular expression for more of them. Raises WithheldShows where their words stand elsewhere, unless `force`.
    """
    path = checked_file(target, "target", "give the path of a new file")
    if path.exists():
        raise StoreError(f"{path} exists already", "choose a new file; bundles are never overwritten")
    aside = aside_of(path)
    conversations = [ledger.rooms.get(room).id for room in rooms]
    threads = [*threads, *(thread for room in conversations for thread in _threads_of(ledger, room))]
    try:
        with open_thread_facts(ledger, threads, conversations) as facts, KnownNames() as known_names:
            withholding = Withholding(facts, ledger, withhold, matching)
            with open_aside(aside) as out:
                writing = _Writing(facts, withholding, known_names, BundleWriter(out))
                writing.write(signers, progress)
            if writing.leaks and not force:
                raise WithheldShows(writing.leaks[:LEAKS], max(0, len(writing.leaks) - LEAKS))
        # Verified before it has its name: no file of that name is a bundle that does not hold.
        report, size = verify_bundle(aside, [signer.public for signer in signers]), aside.stat().st_size
        with remembered(ledger._store, path, BUNDLE):
            put_in_place(aside, path)
    except OSError as error:
        raise path_error(path, error) from error
    except InvalidBundle as error:  # the ledger's own facts do not lead to these heads
        raise FactDamaged("thread", ", ".join(threads), error.reason) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return CreatedBundle(path=str(path), bytes=size, report=report, shows=tuple(writing.leaks))


def _threads_of(ledger: Ledger, room: str) -> list[str]:
    """The sessions of the agents that answered in a room."""
    labels = [
        participant.session
        for participant in ledger.rooms.participants(room, removed=True)
        if participant.session is not None
    ]
    threads = [label for label in dict.fromkeys(labels) if ledger.session(label).head is not None]
    if not threads:
        raise NotApplicable("no agent has answered in the room", "a bundle holds at least one thread: export the room")
    return threads


def sign_bundle(source: str | Path, target: str | Path, signers: Sequence[Signer]) -> BundleReport:
    """The same bundle in a new file, with further signatures. It is verified before anybody signs it."""
    path, proved = checked_path(target, "target"), verify_bundle(source)
    if path.exists():
        raise StoreError(f"{path} exists already", "choose a new file; bundles are never overwritten")
    aside = aside_of(path)
    statement = verification.statement(proved.digest, proved.heads)
    try:
        with verification.opened(source) as file, open_aside(aside) as out:
            packer = BundleWriter(out)
            signatures = {
                signer.public.bytes: verification.signature_line(signer.public.bytes, signer.sign(statement))
                for signer in signers
            }
            for line in unpacked_lines(file):
                if packer.lines.hexdigest() != proved.digest:
                    packer.add(line)
                else:
                    signatures.setdefault(bytes.fromhex(verification.parsed(line)["key"]), line)
            for key in sorted(signatures):
                packer.add(signatures[key])
            packer.finish()
        report = verify_bundle(aside, [signer.public for signer in signers])
        put_in_place(aside, path)
    except OSError as error:
        raise path_error(path, error) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return report


class _Writing:
    """One bundle in the making."""

    def __init__(
        self, facts: ThreadFacts, withholding: Withholding, known_names: KnownNames, packer: BundleWriter
    ) -> None:
        self._facts, self._withholding, self._known_names, self._packer = facts, withholding, known_names, packer
        self._events = self._contents = self._absent = 0
        self.leaks: list[str] = []

    def write(self, signers: Sequence[Signer], progress: Report | None) -> None:
        packer, heads = self._packer, self._facts.heads
        packer.add(verification.header_line(heads))
        total = self._facts.txn.facts.tip().n
        for n, line in self._facts.events():
            self._add_event(line)
            if progress is not None:
                progress(n, total)
        packer.add(verification.end_line(self._events, self._contents, self._absent, packer.lines.hexdigest()))
        statement = verification.statement(packer.lines.hexdigest(), heads)
        by_key = {signer.public.bytes: signer for signer in signers}
        for key in sorted(by_key):
            packer.add(verification.signature_line(key, by_key[key].sign(statement)))
        packer.finish()

    def _add_event(self, line: bytes) -> None:
        """The tombstones of what it names and was erased, its contents, and the event itself."""
        event = verification.parsed(line)
        named_refs = [(path, ref) for path, ref in verification.references(event) if self._known_names.get(ref) is None]
        for _, ref in named_refs:
            if (
                self._known_names.get(ref) is None
                and self._is_erased(ref)
                and (tombstones := self._facts.tombstones(ref))
            ):
                self._add_absent(ref, verification.ERASED)
                for tombstone in tombstones:
                    self._add_event(tombstone)
        for path, ref in named_refs:
            if self._known_names.get(ref) is None:
                self._add_content(event, path, ref)
        self._packer.add(event_line(line))
        self._events += 1

    def _is_erased(self, ref: str) -> bool:
        try:
            self._facts.content(ref)
        except ContentGone:
            return True
        return False

    def _add_absent(self, ref: str, why: str) -> None:
        self._known_names.add(ref, why)
        self._packer.add(verification.absent_line(ref, why))
        self._absent += 1

    def _add_content(self, event: dict[str, Any], path: str, ref: str) -> None:
        try:
            head = self._facts.content(ref)
        except ContentGone:
            self._add_absent(ref, verification.ERASED)
            return
        why = verification.MISSING if head is None else self._withholding.why(event, path, ref)
        if why is not None or head is None:
            self._add_absent(ref, why or verification.MISSING)
            return
        if self._withholding.is_asked:
            self._look_for_leaks(event, path, ref)
        self._known_names.add(ref, "")
        for line in verification.content_lines(ref, head.salt, head.size, self._facts.txn.facts.stream_content(head.n)):
            self._packer.add(line)
        self._contents += 1

    def _look_for_leaks(self, event: dict[str, Any], path: str, ref: str) -> None:
        if any(map(self._withholding.withheld_words.found_in, self._withholding.texts(ref))):
            stream = str(event["stream"]).replace("run:", "turn ")
            self.leaks.append(f"{stream}, {event['kind']} {path} (content {ref})")
