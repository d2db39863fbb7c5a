"""`weft verify`: is everything as it was written?"""

from __future__ import annotations

import click
import msgspec

from weft.kernel.errors import InvalidInput
from weft.kernel.events import Receipt
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import Verification


@weft_command("verify")
@click.option("--facts-only", is_flag=True, help="Only events and contents against their hashes.")
@click.option("--views-only", is_flag=True, help="Only turns, sessions and the other views against the facts.")
@click.option(
    "--receipt",
    metavar="FILE",
    type=click.Path(),
    help="Also hold the ledger to a receipt that `weft record --json` gave.",
)
def command(call: Call, facts_only: bool, views_only: bool, receipt: str | None) -> int:
    """Check every fact and every view.

    Exits with 1 if there is any problem.
    """
    if facts_only and views_only:
        raise click.UsageError("--facts-only and --views-only exclude each other")
    held = None if receipt is None else _read_receipt(receipt)
    problems = []
    with call.reading() as ledger, progress(call, "verify") as bar:
        for problem in ledger.verify(facts=not views_only, views=not facts_only, receipt=held, progress=bar.staged):
            problems.append(problem)
            if not call.json:
                call.screen.show(Span(problem.what, "bad"), f" {problem.where}: {problem.detail}")
        erased = 0 if problems else ledger.upkeep.stats()["erased_contents"]
    if problems:
        call.answer(Verification(ok=False, problems=problems))
        call.note(f"{counted(len(problems), 'problem')}. Views: `weft rebuild` mends them. Facts: restore a backup.")
        return DIFFERENT
    call.answer(Verification(ok=True, problems=[], erased_contents=erased), [Span("no problems", "good")])
    if erased:
        call.note(f"{counted(erased, 'content')} erased: `weft erase --list` tells why")
    return OK


def _read_receipt(name: str) -> Receipt:
    data = read_input(name, "no receipt was given: name its FILE")
    try:
        answer = msgspec.json.decode(data)
        return msgspec.convert(answer.get("receipt", answer) if isinstance(answer, dict) else answer, Receipt)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{name} is not a receipt: {error}", "keep what `weft record --json` answers") from error
