"""The rules that know credentials (kingfisher's, which `weft[secrets]` brings, and our own),
what a text must hold for any of them to match, how far contents were looked through with which
rules, and what models are sent of results with secrets.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import b64decode
from binascii import Error
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, cast

from msgspec import Struct
from msgspec.json import decode

from weft.kernel.errors import ContentGone, ContentMissing, FactDamaged, InvalidInput, NotApplicable, Unsupported
from weft.ledger.imports.sources import MAGIC, import_secret, unpacked
from weft.ledger.model import SentResult
from weft.store.fact_log import ErasedContents, refuse_disorder
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql, rows_in

# --- What a text must hold for any of kingfisher's rules to match: asked before the rules themselves, which take
# seconds to compile.

PATTERNS = Path(__file__).with_name("rule_patterns.json")
LONGEST_BYTES = 64 * 1024
"""A longer text is left to the rules: they are as much faster as they are slow to begin."""
BASE64_DEPTH = 2
"""So often kingfisher looks into base64 within base64."""
_base64 = re.compile(rb"[A-Za-z0-9+/_-]{28,}+")
_standard = bytes.maketrans(b"-_", b"+/")


class RulePattern(Struct, frozen=True):
    """One rule."""

    kind: str
    """What it finds, in words."""
    words: tuple[tuple[str, ...], ...]
    """Sets of words in small letters; of each set every match holds one."""
    pattern: str
    """Every match begins with a match of this."""

    def may_match(self, data: bytes, small: bytes) -> bool:
        """Whether it could match in these bytes, which are there in small letters as well."""
        if not all(any(word.encode() in small for word in words) for words in self.words[1:]):
            return False
        return _compiled_pattern(self.pattern).search(data) is not None


class RulePatterns(Struct, frozen=True, dict=True):
    """The rules of one version of kingfisher."""

    version: str
    count: int
    """Of all rules, with those that find nothing by themselves and are left out here."""
    rules: dict[str, RulePattern]

    def may_match(self, data: bytes, depth: int = BASE64_DEPTH) -> bool:
        """Whether a rule could find something in these bytes. True says nothing; False says that none does."""
        if b"\0" in data or len(data) > LONGEST_BYTES:  # kingfisher reads UTF-16, too
            return True
        small = data.lower()
        names = {name for word, needing in self._by_word.items() if word in small for name in needing}
        if any(self.rules[name].may_match(data, small) for name in sorted(names)):
            return True
        return depth > 0 and any(self.may_match(inner, depth - 1) for inner in _decoded_base64(data))

    @cached_property
    def _by_word(self) -> dict[bytes, list[str]]:
        """By a word the rules that need one of a set with it; every text holds the empty one."""
        by_word: dict[bytes, list[str]] = {}
        for name, rule in self.rules.items():
            for word in rule.words[0] if rule.words else ("",):
                by_word.setdefault(word.encode(), []).append(name)
        return by_word


@cache
def load_patterns(version: str) -> RulePatterns | None:
    """Those of this version of kingfisher; None where the table is of another one."""
    patterns = decode(PATTERNS.read_bytes(), type=RulePatterns)
    return patterns if patterns.version == version else None


@cache
def _compiled_pattern(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode())


def _decoded_base64(data: bytes) -> Iterator[bytes]:
    """What stands in base64, of either alphabet, and is ASCII; of the rest kingfisher reads nothing."""
    for run in _base64.findall(data):
        plain = run.translate(_standard)
        try:
            inner = b64decode(plain + b"=" * (-len(plain) % 4))
        except Error:  # a lone last letter is no base64, for kingfisher neither
            continue
        if inner.isascii():
            yield inner


# --- The rules that know credentials: kingfisher's, which `weft[secrets]` brings.

DIGITS = 16
SHOWN = 4
LONG = 16
"""Of a credential shorter than this nothing is shown."""
COMPONENTS = frozenset(
    "betterleaks." + name
    for name in (
        "alibaba-sts-security-token", "aws-secret-access-key", "exoscale-api-secret", "ovh-consumer-key",
        "polymarket-api-secret", "polymarket-passphrase",
    )
)  # fmt: skip
"""Rules that only serve others in kingfisher's own reports, but whose matches are secret by themselves."""
QUICK_BYTES = 256 * 1024
"""So much is looked through by the patterns of rules before the rules themselves are compiled."""
UNKEPT_QUICK_BYTES = 4 * 1024 * 1024
"""The same where compiled rules are kept nowhere, and compiling them takes ten times as long as reading them."""
PIECE_BYTES, PIECE_OVERLAP_BYTES = 56 * 1024, 16 * 1024
"""A long text is handed to the patterns in pieces, which overlap by more than any credential has."""
NAME_LENGTH = 24
_name = re.compile(r"_?[a-z]+(?:_[a-z]+){2,}_?")
_breaks = re.compile(rb"(?<!\\)\\++[nrt]|\s+")
_kind_in_name = re.compile(r"^\w+ an? (?:possible |potential )?(.+)$", re.I)


def is_name(text: str) -> bool:
    """Whether this is a name of a program, such as `internal_chat_message_metadata`: small words, no digit. Rules that
    look for many letters take it for a random key, which would not lack capitals and digits."""
    return len(text) >= NAME_LENGTH and _name.fullmatch(text) is not None


class SecretTrace(Struct, frozen=True, gc=False):
    """A credential that a rule found, without the credential."""

    rule: str
    start: int
    fingerprint: str
    shown: str


class SecretScanner(Protocol):
    """Finds credentials in bytes, without asking anybody else."""

    @property
    def rules(self) -> str:
        """Which rules these are, and of which version: what was scanned with others is scanned again."""

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        """What is found in these bytes; fingerprints are made with `key`."""

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        """The fingerprints with the credentials themselves, to be looked for elsewhere and forgotten."""

    def kind(self, rule: str) -> str:
        """What a rule finds, in words."""


def checked_scanner(value: Any) -> SecretScanner:
    """Whatever has the parts of one; a class of scanners is none."""
    parts = (getattr(value, name, None) for name in ("scan", "values", "kind"))
    if isinstance(value, type) or not isinstance(getattr(value, "rules", None), str) or not all(map(callable, parts)):
        raise InvalidInput(f"scanner is {type(value).__name__}", "give what `load_scanner` returns, or none")
    return cast(SecretScanner, value)


def fingerprint(secret: str, key: bytes) -> str:
    """The same for one credential wherever and however it was wrapped; tells nothing to whoever lacks the key."""
    plain = _breaks.sub(b"", secret.encode("utf-8", "surrogatepass")).rstrip(b"\\")
    return hmac.new(key, b"weft.secret.1\n" + plain, sha256).hexdigest()[:DIGITS]


def redacted(secret: str) -> str:
    head = secret[:SHOWN] if len(secret) >= LONG else ""
    return "".join(c if " " < c < "\x7f" else "*" for c in head) + "…"


class CompiledRules(Struct, frozen=True):
    """All rules of kingfisher, and the scanner made of them."""

    catalog: Any
    scan: Callable[[bytes], list[Any]]


class Kingfisher:
    """Kingfisher's rules. They are compiled for the first text in which one of them may find something, or once so much
    was looked at that they are faster: compiling takes seconds, reading what an earlier process compiled half a second.
    Scanning is local; its validation, which is not, is never called."""

    def __init__(self, sdk: Any, folder: Path | None) -> None:
        self._sdk, self._folder = sdk, folder
        self._patterns = load_patterns(sdk.__version__)
        self._compiling = Lock()
        self._compiled: CompiledRules | None = None
        self._quick_bytes = QUICK_BYTES if folder is not None else UNKEPT_QUICK_BYTES
        self._looked_at = 0

    @property
    def name(self) -> str:
        """Names these rules in one word."""
        return f"kingfisher.{self._sdk.__version__}"

    @property
    def rules(self) -> str:
        count = len(self._compiled_rules().catalog) if self._patterns is None else self._patterns.count
        return f"kingfisher {self._sdk.__version__}, {count} rules, names of programs left out"

    def scan(self, data: bytes, key: bytes) -> list[SecretTrace]:
        return [
            SecretTrace(
                found.rule_id, found.location["start_offset"], fingerprint(found.secret, key), redacted(found.secret)
            )
            for found in self._matches_in(data)
        ]

    def values(self, data: bytes, key: bytes) -> Iterator[tuple[str, str]]:
        return ((fingerprint(found.secret, key), found.secret) for found in self._matches_in(data))

    def _matches_in(self, data: bytes) -> Iterator[Any]:
        if not self._may_match(data):
            return iter(())
        found = (found for found in self._compiled_rules().scan(data) if found.visible or found.rule_id in COMPONENTS)
        return (match for match in found if not is_name(match.secret))

    def _may_match(self, data: bytes) -> bool:
        if self._compiled is not None or self._patterns is None:
            return True
        self._looked_at += len(data)
        return self._looked_at > self._quick_bytes or self._patterns.may_match(data)

    def secrets(self, text: str) -> Iterator[tuple[str, str]]:
        """The credentials in a text as they are written there, each with its kind. Of what stands in base64 that is the
        base64."""
        whole = text.encode("utf-8", "surrogatepass")
        for data in (whole,) if self._compiled is not None else pieces_of(whole):
            for found in self._matches_in(data):
                place = found.location
                coded = data[place["start_offset"] : place["end_offset"]].decode("utf-8", "replace")
                yield self.kind(found.rule_id), coded if found.is_base64_encoded else found.secret

    def kind(self, rule: str) -> str:
        if self._patterns is not None and rule in self._patterns.rules:
            return self._patterns.rules[rule].kind
        return self._kinds_by_rule.get(rule, rule)

    @cached_property
    def _kinds_by_rule(self) -> dict[str, str]:
        return {rule["id"]: in_short(rule["name"]) for rule in self._compiled_rules().catalog.metadata()}

    def _compiled_rules(self) -> CompiledRules:
        with self._compiling:
            if self._compiled is None:
                catalog = self._sdk.Rules(cache=self._folder is not None, cache_dir=self._folder)
                policy = self._sdk.DetectionPolicy(inline_ignores=False, markup_context=False)
                self._compiled = CompiledRules(catalog, self._sdk.Scanner(catalog, policy=policy).scan)
            return self._compiled


def pieces_of(data: bytes) -> Iterator[bytes]:
    """The pieces of a text that the patterns look through."""
    yield data[:PIECE_BYTES]
    for end in range(PIECE_BYTES, len(data), PIECE_BYTES - PIECE_OVERLAP_BYTES):
        yield data[end - PIECE_OVERLAP_BYTES : end - PIECE_OVERLAP_BYTES + PIECE_BYTES]


def in_short(name: str) -> str:
    """A rule's name, without what may come of it: `Found a Stripe Access Token, posing …`."""
    found = _kind_in_name.match(name.partition(",")[0].rstrip("."))
    return found[1] if found else name.partition(",")[0].rstrip(".")


def load_scanner(folder: Path | None = None) -> Kingfisher:
    """Kingfisher with all its rules. Where they have to be compiled that takes some seconds, once in a process;
    `folder` keeps them for the next one."""
    try:
        import kingfisher_sdk
    except ImportError as error:
        raise Unsupported(
            f"finding secrets needs kingfisher-secret-scanner ({error})", "install it: `pip install 'weft[secrets]'`"
        ) from error
    return _scanner_of(kingfisher_sdk, folder)


@cache
def _scanner_of(sdk: Any, folder: Path | None) -> Kingfisher:
    return Kingfisher(sdk, folder)


# --- Looking through contents in order of arrival, and remembering how far that went with which rules.

MARK = "secrets"
RULES_KEY = "secret_rules"
BATCH_ROWS, BATCH_BYTES = 256, 4 * 1024 * 1024
REACH = 32 * 1024
"""No credential, with the words that tell it for one, is longer."""
_escaped_breaks = re.compile(rb"(?<!\\)\\++[nrt]")
_quotes = re.compile(rb'(?<!\\)\\++(["/])')
_escapes = re.compile(rb'(?<!\\)\\++[nrt"/]')
_NOTE = "INSERT INTO local(key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_FOUND = (
    "INSERT INTO secret_found(content, start, rule, fingerprint, shown) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (content, start, rule) DO UPDATE SET fingerprint = excluded.fingerprint, shown = excluded.shown"
)
_MOVE = "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n"

Report = Callable[[str, int, int], None]


class SecretScan(Struct, frozen=True):
    """What one run looked at."""

    contents: int
    bytes: int


class ScanPart(Struct, frozen=True):
    """Some contents after `mark`, up to `end` of `last`, and what was found in them."""

    mark: int
    end: int
    last: int
    contents: int
    bytes: int
    found: list[tuple[int, SecretTrace]]


class ContentWindow(Struct, frozen=True, gc=False):
    """Some bytes of a content from `at` on; what begins from `low` to before `high` belongs to this one."""

    at: int
    data: bytes
    low: int
    high: int


def scan(store: Store, scanner: SecretScanner, report: Report, *, anew: bool = False) -> SecretScan:
    """Look at every content that these rules have not seen yet; `anew`: at every content."""
    key = import_secret(store)
    with store.read() as txn:
        stale = _rules_in_use(txn.sql) != scanner.rules
    if anew or stale:
        store.write(lambda txn: _begin_scan(txn.sql, scanner.rules))
    contents = size = 0
    while (part := _look_at_next(store, scanner, key)) is not None:
        store.write(partial(_note_part, scanner.rules, part))
        contents, size = contents + part.contents, size + part.bytes
        report("contents", part.end, part.last)
        store.pause_reading()
    return SecretScan(contents, size)


def _look_at_next(store: Store, scanner: SecretScanner, key: bytes) -> ScanPart | None:
    """The contents that come next, if there are any."""
    with store.read() as txn:
        mark = txn.facts.watermark(MARK)
        numbers = next_contents(txn.sql, mark)
        if not numbers:
            return None
        (last,) = txn.sql.fetch_row("SELECT max(n) FROM content") or (0,)
        found = [(n, trace) for n, _ in numbers for trace in _content_traces(txn, n, scanner, key)]
    return ScanPart(mark, numbers[-1][0], last, len(numbers), sum(size for _, size in numbers), found)


def _begin_scan(sql: Sql, rules: str) -> None:
    """Other rules find other things: what older ones found is forgotten, and all is looked at again."""
    sql.run("DELETE FROM secret_found")
    sql.run("DELETE FROM watermark WHERE view = ?", (MARK,))
    sql.run(_NOTE, (RULES_KEY, rules))


def _rules_in_use(sql: Sql) -> str | None:
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (RULES_KEY,))
    return str(row[0]) if row else None


def next_contents(sql: Sql, mark: int) -> list[tuple[int, int]]:
    """Numbers and sizes of some contents beyond the mark; at least one, where there is any."""
    rows = sql.fetch_rows("SELECT n, size FROM content WHERE n > ? ORDER BY n LIMIT ?", (mark, BATCH_ROWS))
    refuse_disorder("content", mark, rows)
    chosen: list[tuple[int, int]] = []
    size = 0
    for n, each in rows:
        if chosen and size + each > BATCH_BYTES:
            break
        chosen.append((n, each))
        size += each
    return chosen


def _content_traces(txn: ReadTxn, n: int, scanner: SecretScanner, key: bytes) -> Iterator[SecretTrace]:
    for window in windows_of(txn, n):
        for trace in _traces_in(scanner, window.data, key):
            start = window.at + trace.start
            if window.low <= start < window.high:
                yield SecretTrace(trace.rule, start, trace.fingerprint, trace.shown)


def windows_of(txn: ReadTxn, n: int) -> Iterator[ContentWindow]:
    """A content, as it lay; none of one that is erased."""
    try:
        yield from windows(as_it_lay(txn, n, txn.facts.stream_content(n)))
    except ContentGone:
        return


def _traces_in(scanner: SecretScanner, data: bytes, key: bytes) -> Iterator[SecretTrace]:
    """As the bytes are, and as they were before JSON wrapped them: rules that look for a quote meet a backslash."""
    yield from scanner.scan(data, key)
    if b"\\" in data and (plain := without_escapes(data)) != data:
        for trace in scanner.scan(plain, key):
            yield SecretTrace(trace.rule, place_before(data, trace.start), trace.fingerprint, trace.shown)


def without_escapes(data: bytes) -> bytes:
    return _quotes.sub(rb"\1", _escaped_breaks.sub(b"\n", data))


def place_before(data: bytes, place: int) -> int:
    """Where in `data` the byte is that lies at this place once escapes are taken out."""
    shorter = 0
    for found in _escapes.finditer(data):
        if found.start() - shorter >= place:
            break
        shorter += len(found[0]) - 1
    return place + shorter


def as_it_lay(txn: ReadTxn, n: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A content in pieces; of a kept stretch what lay in its source. What only looks like one is what it is."""
    for i, piece in enumerate(pieces):
        if i == 0 and piece.startswith(MAGIC):
            try:
                yield unpacked(txn, n)
            except (FactDamaged, ContentMissing, ContentGone):
                pass
            else:
                return
        yield piece


def windows(pieces: Iterable[bytes]) -> Iterator[ContentWindow]:
    """Overlapping windows, such that whatever is found has `REACH` bytes before and after it, where there are any."""
    at, low, held = 0, 0, b""
    rest = iter(pieces)
    piece = next(rest, None)
    while piece is not None:
        data, following = held + piece, next(rest, None)
        high = at + len(data) if following is None else max(low, at + len(data) - REACH)
        yield ContentWindow(at, data, low, high)
        held = data[-2 * REACH :]
        at, low, piece = at + len(data) - len(held), high, following


def _note_part(rules: str, part: ScanPart, txn: WriteTxn) -> None:
    """What was found; the mark moves from where it stood alone: whoever
    began anew looks at these contents, too."""
    if _rules_in_use(txn.sql) != rules:
        raise NotApplicable(
            "somebody looks for secrets with other rules at the same time", "use one version of the rules"
        )
    note_found(part.found, txn)
    if txn.facts.watermark(MARK) == part.mark:
        txn.sql.run(_MOVE, (MARK, part.end))


def note_found(found: list[tuple[int, SecretTrace]], txn: WriteTxn) -> None:
    """But for contents that were erased meanwhile."""
    query = "SELECT n FROM content WHERE length(salt) > 0 AND n IN"
    there = {n for (n,) in rows_in(txn.sql, query, (n for n, _ in found))}
    rows = [(n, t.start, t.rule, t.fingerprint, t.shown) for n, t in found if n in there]
    txn.sql.run_many(_FOUND, rows)


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """What was found in contents that are erased now."""
    txn.sql.run_many("DELETE FROM secret_found WHERE content = ?", [(n,) for n in forgotten.contents])


# --- Rules of our own: credentials that are known by how they begin, and private keys of which only a part is there.

BUILT_IN_VERSION = "weft.1"
"""Names this list; another list has another number."""
_KEY_LINE = r"(?:\s|\\[nrt]|\d{1,7}[\t:-])*+[A-Za-z0-9+/=]{16,}+"
"""A line of a private key, perhaps with its number before it or with its line end escaped."""


class BuiltInRule(Struct, frozen=True):
    """One kind of credential."""

    kind: str
    word: str
    """Stands in every text in which it is found."""
    expression: re.Pattern[str]
    """Its group 1 is the credential."""


def _built_in_rule(kind: str, word: str, expression: str) -> BuiltInRule:
    return BuiltInRule(kind, word, re.compile(expression))


def _prefix_rule(kind: str, prefix: str, rest: str) -> BuiltInRule:
    return _built_in_rule(kind, prefix, rf"(?<![A-Za-z0-9])({re.escape(prefix)}{rest})")


BUILT_IN_RULES = (
    _built_in_rule(
        "private key",
        "PRIVATE KEY",
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\s*+[A-Za-z-]{1,30}: [^\n]{0,200}){0,8}+"
        rf"(?:{_KEY_LINE})++(?:(?:\s|\\[nrt]|\d{{1,7}}[\t:-])*+-----END [A-Z ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----)?+)",
    ),
    _prefix_rule("GitHub token", "ghp_", "[A-Za-z0-9]{36,}"),
    _prefix_rule("GitHub token", "gho_", "[A-Za-z0-9]{36,}"),
    _prefix_rule("GitHub token", "ghs_", "[A-Za-z0-9]{36,}"),
    _prefix_rule("GitHub token", "github_pat_", "[A-Za-z0-9_]{60,}"),
    _prefix_rule("GitLab token", "glpat-", "[A-Za-z0-9_-]{20,}"),
    _prefix_rule("Anthropic key", "sk-ant-", "[A-Za-z0-9_-]{20,}"),
    _prefix_rule("OpenAI key", "sk-proj-", "[A-Za-z0-9_-]{20,}"),
    _prefix_rule("OpenAI key", "sk-svcacct-", "[A-Za-z0-9_-]{20,}"),
    _built_in_rule(
        "OpenAI key",
        "T3BlbkFJ",
        # from the beginning of a word, whose first sk- is taken: so each letter is read once
        r"(?<![A-Za-z0-9_-])(?>[A-Za-z0-9_-]*?(?<![A-Za-z0-9])(?=sk-))"
        r"(sk-[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,})",
    ),
    _prefix_rule("OpenRouter key", "sk-or-v1-", "[0-9a-f]{64}"),
    _prefix_rule("Groq key", "gsk_", "[A-Za-z0-9]{40,}"),
    _prefix_rule("Google key", "AIza", "[A-Za-z0-9_-]{35}"),
    _built_in_rule(
        "AWS secret access key",
        "ecret",
        r"[Ss]ecret_?[Aa]ccess_?[Kk]ey[\"'\s:=]{1,10}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _built_in_rule(
        "AWS secret access key",
        "SECRET_ACCESS_KEY",
        r"SECRET_ACCESS_KEY[\"'\s:=]{1,10}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _prefix_rule("Slack token", "xox", "[abeoprs]-[A-Za-z0-9-]{20,}"),
    _prefix_rule("Stripe key", "sk_live_", "[A-Za-z0-9]{20,}"),
    _prefix_rule("Stripe key", "rk_live_", "[A-Za-z0-9]{20,}"),
    _prefix_rule("npm token", "npm_", "[A-Za-z0-9]{36}"),
    _prefix_rule("PyPI token", "pypi-AgE", "[A-Za-z0-9_-]{50,}"),
    _prefix_rule("Hugging Face token", "hf_", "[A-Za-z]{34}"),
    _prefix_rule("SendGrid key", "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
)


def built_in_secrets(text: str) -> Iterator[tuple[str, str]]:
    """The credentials in a text that these rules know, each with its kind."""
    for rule in BUILT_IN_RULES:
        if rule.word in text:
            for match in rule.expression.finditer(text):
                yield rule.kind, match[1]


# --- What models are sent of a result that holds secrets: a mark in the place of each, in all of its texts.

CONTEXT_CHARACTERS = 4096
"""A text of at most so many is looked at together with the name that it has in a result, and with its neighbours."""
KNOWN_SECRETS = 200
"""So many, the newest, are looked for again in later results, where no rule may know them."""
MOST_SECRETS = 200
"""Of a result with more of them, texts that hold one are left out whole: to look for each in all of it takes long."""
ROUNDS = 3
"""So often what is left is given to the rules again."""
_ascii_escapes = re.compile(r"(?<!\\)\\++u(00[0-7][0-9A-Fa-f])")
Ignored = Callable[[Sequence[str]], Collection[str]]
"""Which of some credentials a person said are none."""


class ResultRules(Protocol):
    """Finds credentials in a text."""

    @property
    def name(self) -> str:
        """Names the rules and their version."""

    def secrets(self, text: str) -> Iterable[tuple[str, str]]:
        """Each credential as it stands in the text, with its kind before it."""


class KnownRules:
    """Our own rules, and kingfisher's where they are installed."""

    def __init__(self, kingfisher: Kingfisher | None) -> None:
        self._kingfisher = kingfisher

    @property
    def name(self) -> str:
        """See `ResultRules`."""
        return BUILT_IN_VERSION if self._kingfisher is None else f"{BUILT_IN_VERSION}/{self._kingfisher.name}"

    def secrets(self, text: str) -> Iterator[tuple[str, str]]:
        """See `ResultRules`."""
        yield from built_in_secrets(text)
        if self._kingfisher is not None:
            yield from self._kingfisher.secrets(text)


@cache
def load_rules(folder: Path | None) -> KnownRules:
    """All rules that there are; `folder` is where compiled ones are kept."""
    try:
        return KnownRules(load_scanner(folder))
    except Unsupported:  # not installed, which `weft doctor` says
        return KnownRules(None)


class KnownSecrets:
    """Credentials that were found before, by their kinds, the latest last. Threads share it."""

    def __init__(self) -> None:
        self._kinds_by_rule: dict[str, str] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kinds_by_rule)

    def among(self, text: str) -> dict[str, str]:
        """Those that stand in a text."""
        with self._lock:
            kinds = list(self._kinds_by_rule.items())
        return {secret: kind for secret, kind in kinds if secret in text}

    def remember(self, kinds: Mapping[str, str]) -> None:
        """A short one may be a word that means something else elsewhere."""
        fresh = {secret: kind for secret, kind in kinds.items() if len(secret) >= LONG}
        with self._lock:
            before = ((secret, kind) for secret, kind in self._kinds_by_rule.items() if secret not in fresh)
            self._kinds_by_rule = dict([*before, *fresh.items()][-KNOWN_SECRETS:])


def mark_secrets(result: Any, rules: ResultRules, known: KnownSecrets, ignored: Ignored) -> SentResult | None:
    """What is sent in the place of a result; None where nothing is found in it. What is found is remembered."""
    sent, kinds, passed = result, dict[str, str](), set[str]()
    for _ in range(ROUNDS):
        fresh = {secret: kind for secret, kind in _kinds_in_result(rules, sent, known).items() if secret not in passed}
        passed |= set(ignored(list(fresh))) if fresh else set()
        fresh = {secret: kind for secret, kind in fresh.items() if secret not in passed}
        if not fresh:
            break
        kinds |= fresh
        if len(kinds) > MOST_SECRETS:
            sent = _withheld_result(sent, rules, passed)
            break
        sent = _result_without(sent, kinds)
    else:
        sent = _withheld_result(sent, rules, passed)
    known.remember(kinds)
    return SentResult(sent, rules.name) if kinds else None


def _kinds_in_result(rules: ResultRules, result: Any, known: KnownSecrets) -> dict[str, str]:
    found = known.among("".join(_texts_in(result)))
    for text in _looked_at(result):
        for kind, secret in rules.secrets(text):
            found.setdefault(secret, kind)
    return found


def mark_of(kind: str) -> str:
    return f"[secret: {kind}]"


def _texts_in(value: Any) -> Iterator[str]:
    """Every text in a result but the names of its fields, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)


def _named_texts(value: Any) -> Iterator[tuple[str, str]]:
    """Names of fields with their texts, where these are short; long names have themselves as texts."""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str) and len(item) <= CONTEXT_CHARACTERS:
                yield name, item
            else:
                yield name, ""
                yield from _named_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _named_texts(item)


def _looked_at(result: Any) -> Iterator[str]:
    """The texts that the rules are given: each text of the result for itself, what it says without the escapes of JSON,
    texts with their names, and what stands across the border between two of them."""
    texts = [text for text in _texts_in(result) if text]
    plain = "\n".join(texts)
    yield plain
    if (unescaped := _unescaped_text(plain)) != plain:
        yield unescaped
    named = "\n".join(f'"{name}": "{text}"' for name, text in _named_texts(result))
    if named:
        yield named
    if len(texts) > 1:
        half = CONTEXT_CHARACTERS // 2
        ends = (text if len(text) <= CONTEXT_CHARACTERS else f"{text[:half]}\n{text[-half:]}" for text in texts)
        yield "".join(ends)


def _unescaped_text(text: str) -> str:
    """What a text says without the escapes of JSON. No credential has letters beyond ASCII."""
    if "\\" not in text:
        return text
    plain = _ascii_escapes.sub(lambda found: chr(int(found[1], 16)), text)
    return without_escapes(plain.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _result_without(result: Any, kinds: Mapping[str, str]) -> Any:
    """A result with a mark in the place of each credential, in texts, in names, and across texts."""
    written = [(form, kind) for secret, kind in kinds.items() for form in _written_forms(secret)]
    written.sort(key=lambda pair: -len(pair[0]))
    texts = list(_texts_in(result))
    spans = _credential_spans("".join(texts), written)
    return _rebuilt_result(result, _cut_texts(texts, spans), written)


def _written_forms(secret: str) -> list[str]:
    """A credential as it may be written: as it is, and with the escapes of JSON or without them."""
    forms = [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    with suppress(ValueError):  # it holds a quote, or a backslash that is no escape
        forms.append(json.loads(f'"{secret}"', strict=False))
    return [form for form in dict.fromkeys(forms) if form]


def _credential_spans(whole: str, written: Sequence[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """Where credentials stand, in order; what overlaps is one."""
    spans: list[tuple[int, int, str]] = []
    for form, kind in written:
        at = whole.find(form)
        while at >= 0:
            spans.append((at, at + len(form), kind))
            at = whole.find(form, at + len(form))
    merged: list[tuple[int, int, str]] = []
    for begin, end, kind in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((begin, end, kind))
    return merged


def _cut_texts(texts: Sequence[str], spans: Sequence[tuple[int, int, str]]) -> Iterator[str]:
    """The texts, of which the spans are places in all of them together, with a mark for what of a span is in one."""
    start = first = 0
    for text in texts:
        end, position, pieces = start + len(text), start, list[str]()
        while first < len(spans) and spans[first][0] < end:
            begin, stop, kind = spans[first]
            pieces += [text[position - start : max(begin, start) - start], mark_of(kind)]
            position = min(stop, end)
            if stop > end:  # the rest of it is in the next text
                break
            first += 1
        yield "".join((*pieces, text[position - start :]))
        start = end


def _rebuilt_result(value: Any, texts: Iterator[str], written: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, dict):
        items = zip(_names_without(value, written), value.values(), strict=True)
        return {name: _rebuilt_result(item, texts, written) for name, item in items}
    if isinstance(value, list):
        return [_rebuilt_result(item, texts, written) for item in value]
    return value


def _names_without(names: Collection[str], written: Sequence[tuple[str, str]]) -> Iterator[str]:
    """No two are the same: of two fields with one name the first would be lost."""
    if not written:
        yield from names
        return
    marked = [_name_without(name, written) for name in names]
    taken = {name for name, new in zip(names, marked, strict=True) if name == new}
    numbers: Counter[str] = Counter()
    for name, new in zip(names, marked, strict=True):
        numbered = new
        while name != new and numbered in taken:
            numbers[new] += 1
            numbered = f"{new} ({numbers[new] + 1})"
        taken.add(numbered)
        yield numbered


def _name_without(name: str, written: Sequence[tuple[str, str]]) -> str:
    for form, kind in written:
        name = name.replace(form, mark_of(kind))
    return name


def _withheld_result(result: Any, rules: ResultRules, passed: Collection[str]) -> Any:
    """A result that the rules still find something in: texts in which they do are left out whole; where that is not
    enough, all of it is."""

    def left(text: str) -> str:
        read = (text,) if (unescaped := _unescaped_text(text)) == text else (text, unescaped)
        kinds = [kind for form in read for kind, secret in rules.secrets(form) if secret not in passed]
        return f"[{len(text)} characters left out: {mark_of(kinds[0])}]" if kinds else text

    sent = _rebuilt_result(result, map(left, list(_texts_in(result))), ())
    kinds = [kind for text in _looked_at(sent) for kind, secret in rules.secrets(text) if secret not in passed]
    return f"[this result is left out: {mark_of(kinds[0])}]" if kinds else sent
