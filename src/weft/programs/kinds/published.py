"""The lifecycle that code, providers and models share: a draft is published, then deprecated."""

from __future__ import annotations

from weft.ledger.views.rows import ProgramRow
from weft.programs.program_writer import ProgramWriter


def publish(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"publish {row.name!r}", row)
    return writer.take_step(row, "publish", reason)


def deprecate(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"deprecate {row.name!r}", row)
    return writer.take_step(row, "deprecate", reason)


FILE_STATES = ("draft", "published", "deprecated")
STATE_IN_USE = "published"
STEPS = {"draft": publish, "published": deprecate}
ENDED_STATES = ("deprecated",)
