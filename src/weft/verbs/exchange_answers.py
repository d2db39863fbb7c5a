"""Answers about what comes from elsewhere and goes elsewhere: imports, exports, bundles,
keys, remotes; about the files of turns; reports about what was done and what it cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from weft.kernel.enums import RestoreOutcome, VolumeMode
from weft.ledger.model import Session, Turn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.exchange.bundles.verification import BundleReport
    from weft.exchange.exporters.export import Exported
    from weft.exchange.importers.port import Problem as SourceProblem
    from weft.exchange.importing.run import OriginTotals
    from weft.exchange.resuming.session_files import Resume
    from weft.exchange.sync.commands import Synced
    from weft.exchange.sync.synced_ledgers import Remote
    from weft.ledger.api import AuditFinding, AuditTally, ProjectWork, Spending
    from weft.verbs.answers import CarriedFilesForm


# --- Answers about what comes from elsewhere and goes elsewhere: imports, exports, bundles, keys, remotes.


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


# --- What the commands answer that fork, bring back, compare, undo and merge the files of turns.


class PlannedCopy(Struct, frozen=True, kw_only=True):
    """`fork`: what becomes of one resource. `kept_by` names the session that has it afterwards; `place` is where a copy
    goes; `changed_since` counts paths that are no longer what they were at the turn, and are copied as they were;
    `skipped` counts those that were not kept, and are in no copy."""

    resource_id: str
    name: str
    kind: str
    mode: VolumeMode
    why: str
    kept_by: str | None = None
    snapshot_id: str | None = None
    size_bytes: int | None = None
    place: str | None = None
    changed_since: int = 0
    skipped: int = 0
    outcome: RestoreOutcome | None = None
    error: str | None = None


class ForkedSession(Struct, frozen=True, kw_only=True):
    """`fork`: a new session, and what became of the resources of the one that it comes from."""

    session: Session
    resources: list[PlannedCopy]


class ForkPlan(Struct, frozen=True, kw_only=True):
    """`fork --dry-run`: what a fork would do with resources."""

    resources: list[PlannedCopy]


class CheckedOutFiles(Struct, frozen=True, kw_only=True):
    """`checkout`: where the files of a turn are now, from which snapshot, and what could not be made equal."""

    turn_id: str
    snapshot_id: str
    place: str
    notes: list[str]


class ReconstructionGap(Struct, frozen=True, kw_only=True):
    """A file that is not known, or with no path some file that is not, why, and since which turn."""

    path: str | None
    why: str
    turn_id: str


class ReconstructedFiles(Struct, frozen=True, kw_only=True):
    """`checkout --reconstruct`: where the files are that a session tells of, what it deleted, and what is not known."""

    turn_id: str
    place: str
    files: int
    deleted: list[str]
    gaps: list[ReconstructionGap]
    snapshot_id: str | None = None
    """With `--record`: the inferred snapshot."""


class ChangedFile(Struct, frozen=True, kw_only=True):
    """`diff --files`: a path that differs, with the lines that do where it is a text and they were asked for."""

    path: str
    status: str
    old_kind: str | None
    new_kind: str | None
    lines: list[str] | None = None


class FilesDiff(Struct, frozen=True, kw_only=True):
    """`diff --files`: the paths that differ between the files of two turns. `runs_by_itself` has those of them that
    some program runs by itself, each with what runs it. `left_id` is null where the right turn is the first one."""

    left_id: str | None
    right_id: str
    changes: list[ChangedFile]
    runs_by_itself: dict[str, str]
    git_changes: list[str] = []
    """Where no turn was named: what of git's is not what it was before the turn."""
    git_unknown: str = ""
    """Why that cannot be told; no part of the JSON form."""


class UndoneFiles(Struct, frozen=True, kw_only=True):
    """`undo`: how many paths of a directory are changed, removed and brought back; `error` says why none was.
    `is_whole`: its git repository and the files that it ignores go back, too."""

    place: str
    changed: int
    removed: int
    restored: int
    is_whole: bool = False
    error: str | None = None


class UndoneTurn(Struct, frozen=True, kw_only=True):
    """`undo`: a session, where it stood and stands, what became of its directories, and what could not be made equal
    in them."""

    session: Session
    before_id: str | None
    directories: list[UndoneFiles]
    notes: list[str]


class PlannedUndo(Struct, frozen=True, kw_only=True):
    """`undo --dry-run`: where a session would stand, and what would become of its directories."""

    label: str
    before_id: str | None
    head_id: str | None
    directories: list[UndoneFiles]


class MergeObstacle(Struct, frozen=True):
    """A path that two sessions changed differently."""

    path: str
    why: str


class MergedBranch(Struct, frozen=True, kw_only=True):
    """`merge`: the turn that tells of a branch, and the folder that its files were merged into; or the conflicts, with
    which nothing was done. `runs_by_itself` has the paths that it changed and that some program runs by itself, each
    with what runs it."""

    turn: Turn | None
    place: str | None
    conflicts: list[MergeObstacle]
    runs_by_itself: dict[str, str] = {}


# --- Answers about what was done and what it cost.


class ProjectTotals(Struct, frozen=True, kw_only=True):
    """`projects`: a folder's figures. `story` has its sessions and files too."""

    path: str
    name: str
    sessions: int
    turns: int
    origins: Sequence[str]
    files: int
    last_at: int
    time_known: bool
    spending: Spending


def project_totals(project: ProjectWork) -> ProjectTotals:
    return ProjectTotals(
        path=project.path,
        name=project.name,
        sessions=len(project.sessions),
        turns=project.turns,
        origins=project.origins,
        files=len(project.files),
        last_at=project.last_at,
        time_known=project.time_known,
        spending=project.spending,
    )


class AuditSummary(Struct, frozen=True, kw_only=True):
    turns: int
    calls: int
    allowed: int
    not_known: int
    problems: int
    refused: int
    """Calls that were refused before they ran; they are not among `calls`."""
    malformed: int
    """Those among them whose arguments fit no tool."""
    findings: Mapping[str, int]


class AuditAnswer(Struct, frozen=True, kw_only=True):
    """`audit`: whether every call was allowed, how many were looked at, and what was found."""

    ok: bool
    summary: AuditSummary
    findings: Sequence[AuditFinding]


def audit_answer(findings: Sequence[AuditFinding], tally: AuditTally) -> AuditAnswer:
    summary = AuditSummary(
        turns=tally.turns,
        calls=tally.calls,
        allowed=tally.allowed,
        not_known=tally.not_known,
        problems=tally.problems,
        refused=tally.refused,
        malformed=tally.malformed,
        findings=tally.found,
    )
    return AuditAnswer(ok=tally.problems == 0, summary=summary, findings=findings)


class LedgerFigures(Struct, frozen=True, kw_only=True):
    """`stats`: where the ledger is, how large, and how much of each thing it holds."""

    path: str
    file_bytes: int | None
    counts: Mapping[str, Any]
