"""Folders that the person at the terminal trusts for work, and the question about one that they do not trust yet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.questions import is_person_there
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.trust import is_granted

if TYPE_CHECKING:
    from weft.store.replicas import TrustedFolder

WORK_LINES = (
    "they change files there, and run commands in the sandbox: without a network, without files of secrets, and with",
    "nothing outside of the folder that can be written but the git repository that it belongs to",
    "`weft undo` takes a turn back, with the repository; whatever leaves the sandbox is asked about",
    "they are told the rules in its AGENTS.md",
)


def allow_work(call: Call, folder: str) -> TrustedFolder:
    """Trust a folder for work, and say how that is taken back. Raises InvalidInput for one that holds more than a
    project: what commands write in it is not asked about."""
    place, home = os.path.realpath(folder), os.path.realpath(os.path.expanduser("~"))
    if place == home or home.startswith(f"{place.rstrip('/')}/"):
        raise InvalidInput(f"{place} holds your whole home folder", "trust the folder of a project for work")
    trusted = call.trust_store.allow_folder(folder, for_work=True)
    call.note(undo("trust", place, "--work", "--revoke"))
    return trusted


def ask_about_work(call: Call, folder: str) -> None:
    """Ask the person at the terminal once whether they trust a folder for work. Nothing else than their yes grants it,
    and where nobody can be asked nothing is."""
    store, place = call.trust_store, os.path.realpath(folder)
    if call.quiet or not is_person_there(call) or store.is_trusted_for_work(place) or store.is_work_declined(place):
        return
    call.note("agents may work in ", Span(place, "heading"), " without asking you for each step:")
    for line in WORK_LINES:
        call.note(f"  {line}")
    if is_granted("do you trust it for work?"):
        allow_work(call, place)
        return
    store.decline_work(place)
    call.note(f"you are asked for each step there; `weft trust {shell_word(place)} --work` changes that")
