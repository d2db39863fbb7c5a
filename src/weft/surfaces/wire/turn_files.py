"""What the commands answer that fork, bring back, compare, undo and merge the files of turns."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.enums import RestoreOutcome, VolumeMode
from weft.ledger.model import Session, Turn


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
