"""Answers about what comes from elsewhere and goes elsewhere: imports, exports, bundles, keys, remotes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.exchange.bundles.verification import BundleReport
    from weft.exchange.exporters.export import Exported
    from weft.exchange.importers.port import Problem as SourceProblem
    from weft.exchange.importing.run import OriginTotals
    from weft.exchange.resuming.session_files import Resume
    from weft.exchange.sync.commands import Synced
    from weft.exchange.sync.synced_ledgers import Remote
    from weft.surfaces.wire.upkeep import CarriedFilesForm


class ImportAnswer(Struct, frozen=True, kw_only=True):
    """`import`: what came in by origin, files of no known format, and problems. `lost_worker` says how the second
    process ended, if it did not hold out; `older_files` were left out by `--since`; `stopped` says that somebody
    interrupted it, and the same command goes on."""

    origins: Mapping[str, OriginTotals]
    unrecognised_files: Sequence[str]
    problems: Sequence[SourceProblem]
    lost_worker: str | None
    older_files: int
    stopped: bool
    dry_run: bool


class ImportStatus(Struct, frozen=True, kw_only=True):
    """`import --status`: how far an import in the background is. `state` is running, watching, finished, stopped,
    failed or killed."""

    state: str
    pid: int
    started_at: int
    updated_at: int
    ledger: str
    log: str
    files: int = 0
    of_files: int = 0
    bytes: int = 0
    of_bytes: int = 0
    sessions: int = 0
    turns: int = 0
    problems: int = 0
    seconds_left: float | None = None
    rate: float | None = None
    """Bytes a second."""
    error: str | None = None

    @property
    def is_alive(self) -> bool:
        return self.state in ("running", "watching")


class NoImport(Struct, frozen=True, kw_only=True):
    """`import --status`, `--stop`: nothing runs in the background."""

    state: Literal["none"] = "none"


class EndedWatch(Struct, tag="stopped"):
    """`import --watch`: the last line, and what all of it brought."""

    files: int = 0
    sessions: int = 0
    turns: int = 0
    superseded: int = 0
    problems: int = 0
    snapshots: int = 0
    """With `--files`: snapshots of folders, each of the turn that ended then."""


class ExportedFile(Struct, frozen=True, kw_only=True):
    """`export -o`: the file and what it holds."""

    file: str
    exported: Exported


class ResumedSession(Struct, frozen=True, kw_only=True):
    """`resume`: the session file of another tool, and the command that goes on there."""

    resume: Resume
    written: bool


class BundleFile(Struct, frozen=True, kw_only=True):
    """`bundle create`: the file, places where withheld words still stand, and its report."""

    file: str
    bytes: int
    shows: Sequence[str]
    report: BundleReport


class SignedBundle(Struct, frozen=True, kw_only=True):
    """`bundle sign`: the file with its new signature, and its report."""

    file: str
    report: BundleReport


class ImportedBundle(Struct, frozen=True, kw_only=True):
    """`bundle open --into`: how much came in and how much was known, and the report."""

    new_events: int
    new_contents: int
    known: int
    erased: int
    report: BundleReport


class KeyForm(Struct, frozen=True, kw_only=True):
    """`key`: a public key as 64 hex digits, and as the line that others trust it by."""

    name: str
    key: str
    own: bool | UnsetType = UNSET
    line: str | UnsetType = UNSET


class DeletedKey(Struct, frozen=True, kw_only=True):
    name: str
    private: bool


class ClonedLedger(Struct, frozen=True, kw_only=True):
    """`clone`: the new ledger, and what came over."""

    path: str
    created_as: str
    synced: Synced
    kept: CarriedFilesForm | None
    """What went with it of the files beside the other ledger; None: that lies elsewhere, and its files stay there."""
    unfinished: int = 0
    """How many turns had not ended: they are here as far as they were recorded, and go on in the other ledger alone."""


class Removed(Struct, frozen=True, kw_only=True):
    """`remote remove`, `credential remove`: the name that is no longer known."""

    removed: str


class ListedRemote(Struct, frozen=True, kw_only=True):
    """`remote`: another ledger by a name. `sessions` are the ids of those that a push is limited to; `replica` is the
    one that answered there first, null where it was not spoken to."""

    name: str
    address: str
    sessions: tuple[str, ...]
    shares_imports: bool
    added_at: int
    replica: str | None

    @classmethod
    def of(cls, remote: Remote, replica: str | None) -> ListedRemote:
        return cls(replica=replica, **asdict(remote))


class RepinnedRemote(Struct, frozen=True, kw_only=True):
    """`remote repin`: the remote or address whose next replica is taken for the right one; `was` is the replica that
    was expected there until now."""

    repinned: str
    was: str | None = None
