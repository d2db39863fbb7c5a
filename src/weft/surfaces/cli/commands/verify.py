"""`weft verify`: is everything as it was written?"""

from __future__ import annotations

import re

import click
import msgspec
from msgspec import UNSET

from weft.kernel.errors import InvalidInput
from weft.kernel.events import Receipt
from weft.ledger.api import Problem
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.file_checks import FileCheck
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.upkeep import Verification

_SHOWN = re.compile(r"^digest +([0-9a-f]{64})\r?\nreceipt +(\w{1,64}) ([0-9]{1,18}) ([0-9a-f]{64})\r?$", re.MULTILINE)
"""A receipt as `weft record` shows it; of several, the last one covers the most."""


@weft_command("verify")
@click.option("--facts-only", is_flag=True, help="Only events and contents against their hashes.")
@click.option("--views-only", is_flag=True, help="Only turns, sessions and the other views against the facts.")
@click.option("--files-only", is_flag=True, help="Only the kept files of turns against their hashes.")
@click.option(
    "--receipt",
    metavar="FILE",
    type=click.Path(),
    help="Also hold the ledger to a receipt: what `weft record` answered, with --json or without.",
)
def command(call: Call, facts_only: bool, views_only: bool, files_only: bool, receipt: str | None) -> int:
    """Check every fact, every view, and the kept files of turns.

    Exits with 1 if there is any problem.
    """
    if facts_only + views_only + files_only > 1:
        raise click.UsageError("--facts-only, --views-only and --files-only exclude each other")
    if files_only and receipt is not None:
        raise click.UsageError("a receipt is about facts: leave --files-only out")
    held = None if receipt is None else _read_receipt(receipt)
    problems: list[Problem] = []

    def show(problem: Problem) -> None:
        problems.append(problem)
        if not call.json:
            call.screen.show(Span(problem.what, "bad"), f" {problem.where}: {safe(problem.detail)}")

    with call.reading() as ledger, progress(call, "verify") as bar:
        if not files_only:
            for problem in ledger.verify(facts=not views_only, views=not facts_only, receipt=held, progress=bar.staged):
                show(problem)
        check = None if facts_only or views_only else FileCheck(ledger)
        for problem in () if check is None else check.problems():
            show(problem)
        erased = 0 if problems else ledger.upkeep.stats()["erased_contents"]
    read, elsewhere = (UNSET, UNSET) if check is None else (check.read, check.elsewhere)
    if problems:
        call.answer(Verification(ok=False, problems=problems, snapshots=read, files_elsewhere=elsewhere))
        mends = "Views: `weft rebuild` mends them. Facts and files: restore a backup."
        call.note(f"{counted(len(problems), 'problem')}. {mends}")
        return DIFFERENT
    answer = Verification(ok=True, problems=[], erased_contents=erased, snapshots=read, files_elsewhere=elsewhere)
    call.answer(answer, [Span("no problems", "good")])
    if check is not None:
        check.note_counts(call)
    if erased:
        call.note(f"{counted(erased, 'content')} erased: `weft erase --list` tells why")
    return OK


def _read_receipt(name: str) -> Receipt:
    data = read_input(name, "no receipt was given: name its FILE")
    if shown := _SHOWN.findall(data.decode("utf-8", "replace")):
        digest, replica, n, log = shown[-1]
        return Receipt(replica, int(n), log, digest)
    try:
        answer = msgspec.json.decode(data)
        return msgspec.convert(answer.get("receipt", answer) if isinstance(answer, dict) else answer, Receipt)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{name} is not a receipt: {error}", "keep what `weft record` answers, with --json or without"
        ) from error
