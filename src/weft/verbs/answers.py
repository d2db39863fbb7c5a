"""Answers about sessions, turns and messages on their way, and of the commands that make,
check, copy, pack, repair and erase: what is more than one record of the ledger, or less; answers
about tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, overload

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.authority import Layer

if TYPE_CHECKING:
    from weft.exchange.sync.synced_ledgers import Remote
    from weft.kernel.events import Receipt, Usage
    from weft.ledger.api import (
        Approval,
        Context,
        CopyResult,
        ErasurePlan,
        ListedSession,
        PackResult,
        Problem,
        PromptChange,
        Provenance,
        ProvisionalTurn,
        SalvageResult,
    )
    from weft.ledger.model import Compaction, Message, ToolCall, Turn
    from weft.programs.program_records import ProgramReach
    from weft.store.port import Diagnosis


# --- What every kind of answer is made of.

T = TypeVar("T")


class Answer(Struct, frozen=True, kw_only=True):
    """An answer that knows more than its JSON form tells: what people are shown beside it."""

    DOCUMENT: ClassVar[str] = ""
    """The field that is the whole JSON form; without one it is made of all fields."""
    IS_SILENT: ClassVar[bool] = False
    """Whether nothing is answered as JSON."""

    @property
    def is_silent(self) -> bool:
        """Also where there is no document this time."""
        return self.IS_SILENT or (bool(self.DOCUMENT) and getattr(self, self.DOCUMENT) is None)


class Listing(Answer, Generic[T], frozen=True, kw_only=True):
    """Records in order. Its JSON form is the list of them."""

    DOCUMENT: ClassVar[str] = "items"
    IS_ONE_DOCUMENT: ClassVar[bool] = False
    """Whether the command line writes the list on one line, as a document that is known whole."""

    items: Sequence[T]
    next: str | None = None
    """Where the next page begins."""
    left_out: int = 0
    """How many turns are still being written, and were not looked at."""


class LazyList(Sequence[T]):
    """Records that are read while somebody goes through them once, as long as the ledger is open. Whoever asks for one
    of them, or how many there are, has all of them read first."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items

    def read_all(self) -> list[T]:
        if not isinstance(self._items, list):
            self._items = list(self._items)
        return self._items

    def __iter__(self) -> Iterator[T]:
        # Begun with the first record: `list(…)` asks for an iterator, and then how many records there are.
        yield from self._items

    def __len__(self) -> int:
        return len(self.read_all())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self.read_all()[index]


class JsonValue(Struct, frozen=True):
    """A value that is JSON already and goes out as it is: what a program answered, or a line of an exported session."""

    value: Any


# --- Answers about sessions and turns that are more than one record of the ledger, or less.


class UnfinishedTurn(Struct, frozen=True, kw_only=True):
    """A turn that another tool is still writing. It has no id yet."""

    provisional: Literal[True] = True
    id: None = None
    turn: ProvisionalTurn


class SessionEntry(Struct, frozen=True, kw_only=True):
    """`sessions`: a session with what lists add to it, and what is still being written in it."""

    listed: ListedSession
    provisional: Sequence[UnfinishedTurn]


class ListedTurn(Struct, frozen=True, kw_only=True):
    """`log`, `tree`: a turn with what it is about, and the sessions that stand there."""

    turn: Turn
    subject: str
    heads: Sequence[str]
    on_behalf_of: Sequence[str] | UnsetType = UNSET
    """The principals on whose behalf it was run, where somebody acted for others."""


class ShownContext(Struct, frozen=True, kw_only=True):
    """`context`: the messages, and how many `tokens` they are, where they would be sent next. `counted_by` is the
    provider that counted them; null: they are estimated."""

    context: Context
    tokens: int | None = None
    counted_by: str | None = None
    why_estimated: str = ""
    """Where nobody counted; no part of the JSON form."""


class ShownEvent(Struct, frozen=True, kw_only=True):
    """An event inside a turn: the `number`-th `of` so many."""

    id: str
    kind: str
    number: int
    of: int


class ShownTurn(Struct, frozen=True, kw_only=True):
    """`show`: a turn with all that it holds, up to `event` where one is named."""

    turn: Turn
    event: ShownEvent | None
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    compaction: Compaction | None
    provenance: Sequence[Provenance]
    provisional: Sequence[UnfinishedTurn]
    on_behalf_of: Sequence[str] | UnsetType = UNSET
    prompt_changes: Sequence[PromptChange] | UnsetType = UNSET
    """Requests that did not begin with all of the one before, so that a cache was read at most up to there."""
    items: Sequence[Message | ToolCall] = ()
    """Both in the order of their events; no part of the JSON form."""


class ReadTurn(Struct, frozen=True, kw_only=True):
    """`read`: one turn of a thread, the oldest first, with all that was said and done."""

    turn: Turn
    session: str | None
    """The label of the session that made it."""
    messages: Sequence[Message]
    tool_calls: Sequence[ToolCall]
    compaction: Compaction | None
    items: Sequence[Message | ToolCall] = ()
    """Both in the order of their events; no part of the JSON form."""


class PickedTurn(Struct, frozen=True, kw_only=True):
    """`cherry-pick`: a new turn and the turn that it says again."""

    turn: Turn
    source_id: str


class SummaryTurn(Struct, frozen=True, kw_only=True):
    """`summarize`: a new turn, the last turn of the branch that it sums up, and where that branch left."""

    turn: Turn
    source_id: str
    left_id: str | None


class ChatReply(Struct, frozen=True, kw_only=True):
    """`chat`: one answer of a model, and the turn that it became. `runs_by_itself` is as in `send`."""

    session: str
    turn: str
    text: str
    thinking: str | None
    model: str
    model_id: str
    provider: str
    finish: str
    usage: Usage | None
    cost: int | None
    """Millionths of a US dollar."""
    latency_ms: int
    request_id: str | None
    attempts: int
    runs_by_itself: dict[str, str]
    not_kept: list[str] = []
    """What the turn could change without asking and `undo` does not give back."""
    git_changes: list[str] = []
    """Where `HEAD`, a branch, a tag or the index is not what it was before the turn, in a folder trusted for work."""


class BlamedLine(Struct, frozen=True, kw_only=True):
    """`blame`: a line of a file, and the turn that wrote it; without a turn nobody knows who did."""

    line: int
    text: str
    turn_id: str | None = None
    call_id: str | None = None
    session_id: str | UnsetType | None = UNSET
    started_at: int | UnsetType = UNSET
    time_known: bool | UnsetType = UNSET
    model: str | UnsetType | None = UNSET


class NodeTags(Struct, frozen=True, kw_only=True):
    """`tag`: the tags of a node."""

    node: str
    tags: Sequence[str]


# --- Answers about messages on their way, and about brokers.


class WatchedCall(Struct, frozen=True, kw_only=True):
    """A tool call of a turn that was waited for. `about` is what it is used on, for reading; `outcome` is `ok`,
    `denied` or the code of an error, and null where it still waits."""

    tool: str
    about: str
    decision: str | None = None
    by: str | None = None
    outcome: str | None = None
    error: str | None = None


class SentMessage(Struct, frozen=True, kw_only=True):
    """`send`, `retry`: a message of an inbox, and the answer where it was waited for. `is_fork` says that a session was
    made for it at a turn, `is_new_session` that one was made; `route` how the session was found; `runs_by_itself` has
    the files that the turn changed and that some program runs by itself, each with what runs it."""

    message: str
    session: str
    session_id: str
    is_fork: bool
    state: str
    route: Any
    receipt: Receipt | None
    is_new_session: bool = False
    turn: str | None = None
    text: str | None = None
    thinking: str | None = None
    model: str | None = None
    model_id: str | None = None
    provider: str | None = None
    finish: str | None = None
    usage: Usage | None = None
    cost: int | None = None
    """Millionths of a US dollar."""
    runs_by_itself: dict[str, str] = {}
    not_kept: list[str] = []
    """What the turn could change without asking and `undo` does not give back."""
    git_changes: list[str] = []
    """Where `HEAD`, a branch, a tag or the index is not what it was before the turn, in a folder trusted for work."""


class InterruptedTurn(Struct, frozen=True, kw_only=True):
    """`interrupt`: the turn that was asked to stop."""

    session: str
    turn: str


class BrokerReady(Struct, frozen=True, kw_only=True):
    """`broker`: printed once it takes messages. `waiting` counts the sessions that it found something to do for."""

    ready: bool
    pid: int
    replica: str
    capacity: int
    waiting: int


class LoggedRequest(Struct, frozen=True, kw_only=True):
    """`serve`: under `--json` one line on standard error for each request that was answered. `route` is a path of the
    table, and has nothing that the client wrote."""

    request: str
    """Its method."""
    route: str
    status: int
    answered_at: int
    milliseconds: int


class ServerReady(Struct, frozen=True, kw_only=True):
    """`serve`: printed once requests are answered at `url`."""

    ready: bool
    pid: int
    url: str
    has_broker: bool
    """Whether messages are answered in the same process."""
    sign_in_url: str
    """Signs the owner's browser in, once."""
    sign_in_expires_at: int


class ServedCaller(Struct, frozen=True, kw_only=True):
    """`GET /api/v1/me`: who asks a server, as it knows them by their credential."""

    principal: str
    on_behalf_of: tuple[str, ...]
    rights: tuple[Layer, ...]
    """Every layer must allow; without any, everything is allowed."""
    credential: Literal["token", "cookie"]
    expires_at: int
    csrf_token: str | None
    """What a browser sends beside its cookie to change something."""


class InvitedPerson(Struct, frozen=True, kw_only=True):
    """`human invite`: a link by which a person chooses a password, once."""

    person: str
    url: str
    expires_at: int


# --- What `weft approve` and `weft reject` answer, and what is said of a tool call that waits for them.


SHORT_ID_LETTERS = 12


def short_id(approval: Approval) -> str:
    return approval.id[:SHORT_ID_LETTERS]


def exact_document(approval: Approval) -> str:
    """The JSON document that the approval is bound to, as it was recorded. Raises NotApplicable where it is not what
    would run."""
    from hashlib import sha256

    from weft.kernel.errors import NotApplicable

    document = (approval.shown or "").rpartition("\n\n")[2]
    if sha256(document.encode()).hexdigest() != approval.plan_digest:
        raise NotApplicable(f"what approval {short_id(approval)} would run cannot be shown", "reject it")
    return document


class AnsweredApproval(Struct, frozen=True, kw_only=True):
    """`approve`, `reject`: a tool call that a person answered for. `proposed` are the ids of the policies that were
    proposed with it."""

    approval: Approval
    proposed: tuple[str, ...] = ()


class WaitingCall(Struct, frozen=True, kw_only=True):
    """A tool call that a turn waits for, without what it would be used on. `approve` and `reject` are the command lines
    that answer it; the first shows it and asks."""

    approval: str
    agent: str
    session: str | None
    tool: str
    why: str | None
    approve: str
    reject: str


class WaitingDocument(Struct, frozen=True, kw_only=True):
    """`send`, `retry`, `agent run`, `task run`, `broker`: what stands on standard error while a turn waits for a
    person."""

    waiting: WaitingCall


# --- The answer of `config`: what the next turn of a session is configured with.


class ConfiguredValue(Struct, frozen=True, kw_only=True):
    """One value that counts, by its name in configurations, and where it comes from. `sent` is false for what the model
    does not take."""

    key: str
    value: Any
    layer: str
    source: str
    sent: bool


class ConfiguredLimits(Struct, frozen=True, kw_only=True):
    """What one layer leaves of tools, credentials and the sandbox; what is null it does not limit."""

    layer: str
    source: str
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    credentials: tuple[str, ...] | None
    files: str | None
    network: bool | None
    hosts: tuple[str, ...] | None


class ConfiguredTurn(Struct, frozen=True, kw_only=True):
    """`config`: how the next message to a session would be answered. `credentials`, `files`, `network` and `hosts` are
    what all layers together leave. `protocol` is what the model is asked in: anthropic, openai-chat, openai-responses
    or google; null for the embedded model."""

    session: str
    persona: str
    model: str | None
    provider: str | None
    protocol: str | None
    situation: str | None
    values: tuple[ConfiguredValue, ...]
    limits: tuple[ConfiguredLimits, ...]
    credentials: tuple[str, ...] | None
    files: str | None
    network: bool | None
    hosts: tuple[str, ...] | None


# --- What `weft token` answers.


class TokenForm(Struct, frozen=True, kw_only=True):
    """`token create`, `attenuate`, `show`: who acts with a token, on whose behalf, with which rights, and until when.
    `ids` are those of the tokens it was made from, and its own. `token` is the token itself, where it was made and no
    file was named."""

    id: str
    ids: tuple[str, ...]
    state: Literal["valid", "expired", "revoked"]
    chain: tuple[str, ...]
    rights: tuple[Layer, ...]
    credentials: tuple[str, ...] | None
    expires_at: int
    key: int
    token: str | UnsetType = UNSET
    file: str | UnsetType = UNSET


class RevokedToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`token revoke`, `list-revoked`: the id of a token with which nobody acts any more, nor with one made from it."""

    id: str
    revoked_at: int


class RotatedKey(Struct, frozen=True, kw_only=True):
    """`token rotate`: the number of the new root key, and of those whose tokens still count."""

    key: int
    keys: tuple[int, ...]


# --- Answers of commands that make, check, copy, pack, repair and erase.


class TrustAnswer(Struct, frozen=True, kw_only=True):
    """`trust`: whether a ledger may act for this person, and what it names of the world outside. `how` is made, cloned,
    copied, recovered or allowed; `doubt` says why one that is not trusted is not."""

    ledger: str
    trusted: bool
    how: str | None
    doubt: str | None
    remotes: Sequence[Remote]
    reaches: Sequence[ProgramReach]


class RevokedFolder(Struct, frozen=True, kw_only=True):
    """`trust FOLDER --revoke`: the folder, and whether it was trusted."""

    folder: str
    was_trusted: bool


class ShownSecret(Struct, frozen=True, kw_only=True):
    """`trust FOLDER --show PATH`: a file that commonly holds secrets, and whether commands see it."""

    folder: str
    path: str
    is_shown: bool


class RevokedTrust(Struct, frozen=True, kw_only=True):
    """`trust --revoke`: the ledger, and whether it was trusted."""

    ledger: str
    was_trusted: bool


class CreatedLedger(Struct, frozen=True, kw_only=True):
    """`init`: the ledger that was made, or was there already."""

    path: str
    created: bool
    replica: str


class ReplicaName(Struct, frozen=True, kw_only=True):
    """`replica`: what the ledger goes by, and what it went by before."""

    replica: str
    was: str | UnsetType = UNSET


class Verification(Struct, frozen=True, kw_only=True):
    """`verify`: every problem, or none."""

    ok: bool
    problems: Sequence[Problem]
    erased_contents: int | UnsetType = UNSET
    snapshots: int | UnsetType = UNSET
    """Of how many snapshots the kept files were read and compared with their hashes."""
    files_elsewhere: int | UnsetType = UNSET
    """Of how many snapshots the files are beside another ledger, or were left out of this copy."""


class PlannedErasure(Struct, frozen=True, kw_only=True):
    """`erase --dry-run`: what would go, with how many snapshots of files."""

    plan: ErasurePlan
    snapshots: int


class Examination(Struct, frozen=True, kw_only=True):
    """`doctor`: what was looked at and what was found."""

    ok: bool
    errors: int
    warnings: int
    findings: Sequence[Diagnosis]


class RebuiltViews(Struct, frozen=True, kw_only=True):
    """`rebuild`: how many rows were wrong."""

    changed: int


class CarriedFilesForm(Struct, frozen=True, kw_only=True):
    """What went along of the files that are kept beside a ledger: how many snapshots of directories, how many copies of
    files and archives; what was left out, since it is not whole; whether all of it was left out, as was asked for."""

    snapshots: int = 0
    files: int = 0
    damaged: Sequence[str] = ()
    left_out: bool = False


class BackupFile(Struct, frozen=True, kw_only=True):
    """`backup`: the copy, and what went with it of the files beside the ledger."""

    file: str
    bytes: int
    kept: CarriedFilesForm


class CopiedLedger(Struct, frozen=True, kw_only=True):
    """`copy`: what the copy holds, and what went with it of the files beside the ledger."""

    copied: CopyResult
    kept: CarriedFilesForm


class FactsFile(Struct, frozen=True, kw_only=True):
    """`facts export`: the file and its lines."""

    file: str
    lines: int


class PackAnswer(Struct, frozen=True, kw_only=True):
    """`pack`: what was compressed, and what the file weighs before and after."""

    packed: PackResult
    dry_run: bool
    file_bytes_before: int | None
    file_bytes_after: int | None


class RecoveryAnswer(Struct, frozen=True, kw_only=True):
    """`recover`: whether events that were acknowledged are missing, and whether that was accepted."""

    damaged: bool
    acknowledged: int | UnsetType = UNSET
    present: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    accepted: bool = False
    replica: str | UnsetType = UNSET


class SalvageAnswer(Struct, frozen=True, kw_only=True):
    """`recover --salvage`: the new ledger, whether it is whole, and what was saved."""

    new: str
    whole: bool
    salvaged: SalvageResult


class NothingToErase(Struct, frozen=True, kw_only=True):
    """`erase`: nothing is left of it to erase, or nothing waits."""

    contents: Literal[0] = 0
    erased_already: int | UnsetType = UNSET
    stays: int | UnsetType = UNSET


class FinishedErasure(Struct, frozen=True, kw_only=True):
    """`erase --finish`: whether no file holds old bytes any more."""

    complete: bool


class IgnoredSecret(Struct, frozen=True, kw_only=True):
    """`secrets --ignore`, `--unignore`: the fingerprint."""

    ignored: str | UnsetType = UNSET
    unignored: str | UnsetType = UNSET
