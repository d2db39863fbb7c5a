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


WEFT = Spec("weft", open_weft, ("weft",), note="`record_turn`")

ALL = (WEFT, BARE, *PEERS)


def spec_named(name: str) -> Spec:
    return next(spec for spec in ALL if spec.name == name)
