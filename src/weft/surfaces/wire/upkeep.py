"""Answers of commands that make, check, copy, pack, repair and erase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.exchange.sync.synced_ledgers import Remote
    from weft.ledger.api import CopyResult, ErasurePlan, PackResult, Problem, SalvageResult
    from weft.programs.program_records import ProgramReach
    from weft.store.port import Diagnosis


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
    """`export-facts`: the file and its lines."""

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
