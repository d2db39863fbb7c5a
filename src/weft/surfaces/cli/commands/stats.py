"""`weft stats`: how much there is."""

from __future__ import annotations

from pathlib import Path

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command


@weft_command("stats")
def command(call: Call) -> None:
    """Show how big the ledger is, and of what."""
    with call.reading() as ledger:
        found = {"path": ledger.path, "file_bytes": _size(ledger.path), **ledger.stats()}
    if call.json:
        call.document(found)
    else:
        call.screen.table([(name, _text(value)) for name, value in found.items()], ("what", "value"))


def _size(path: str) -> int:
    files = (Path(path), Path(f"{path}-wal"))
    return sum(file.stat().st_size for file in files if file.is_file())


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
    return str(value)
