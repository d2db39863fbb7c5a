"""Every store that can be measured, by name."""

from importlib import import_module
from pathlib import Path

from benchmarks.peers import BARE, PEERS
from benchmarks.subject import Spec, Subject

WEFT_MODULE = "benchmarks.weft_subject"


def open_weft(directory: Path) -> Subject:
    """Weft is imported only here, so that the peers can be measured where it cannot be."""
    subject: Subject = import_module(WEFT_MODULE).WeftLedger(directory)
    return subject


def open_same_rows(directory: Path) -> Subject:
    subject: Subject = import_module("benchmarks.same_rows").SameRows(directory)
    return subject


WEFT = Spec("weft", open_weft, ("weft",), note="`record_turn`")
SAME_ROWS = Spec(
    "the same rows, bare",
    open_same_rows,
    ("apsw",),
    note="the statements of Weft's append alone, run again on a bare connection",
    loaded_per_turn=2,
)

OURS = (WEFT, BARE, SAME_ROWS)
ALL = (*OURS, *PEERS)


def spec_named(name: str) -> Spec:
    return next(spec for spec in ALL if spec.name == name)
