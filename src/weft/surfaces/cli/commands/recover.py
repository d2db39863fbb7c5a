"""`weft recover`: a database that holds less than was acknowledged."""

from __future__ import annotations

import click

from weft.kernel.errors import LogCut
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import OK, exit_code
from weft.surfaces.cli.locating import find_ledger
from weft.surfaces.cli.screen import Span


@weft_command("recover")
@click.option("--accept", is_flag=True, help="Go on from what is there; what is missing is given up.")
def command(call: Call, accept: bool) -> int:
    """Explain a ledger that was cut short, and accept it.

    A ledger remembers beside its database how much it has acknowledged. When the database holds less, or something
    else, nothing is opened until the newer copy is put back or the loss is accepted here.
    """
    found = _cut(call)
    if found is None:
        call.answer({"damaged": False, "accepted": False}, [Span("nothing to recover: the ledger is whole", "good")])
        return OK
    answer = {"damaged": True, "acknowledged": found.n, "present": found.found, "message": str(found)}
    if not accept:
        call.answer({**answer, "accepted": False}, [Span(str(found), "bad")])
        call.note("put the newer copy back if there is one. `weft recover --accept` goes on without what is missing")
        return exit_code(found)
    with call.recovering(find_ledger(call.ledger)) as ledger:
        answer = {**answer, "accepted": True, "replica": ledger.replica}
    call.answer(answer, [f"accepted at event {found.found}; the ledger goes on as replica {answer['replica']}"])
    call.note("receipts for what is missing do not hold for it; run `weft verify` and make a backup")
    return OK


def _cut(call: Call) -> LogCut | None:
    try:
        call.reading().close()
    except LogCut as error:
        return error
    return None
