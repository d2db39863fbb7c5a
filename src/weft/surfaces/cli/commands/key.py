"""`weft key`: the keys that bundles are signed with."""

from __future__ import annotations

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.command import group
from weft.surfaces.cli.questions import confirm
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import complete_keys, key_ring, new_passphrase
from weft.surfaces.wire.exchange import DeletedKey, KeyForm

SHOWN = 16


@weft_command("create")
@click.argument("name")
@click.option("--passphrase", is_flag=True, help="Seal it with a passphrase, which is asked for.")
def create(call: Call, name: str, passphrase: bool) -> None:
    """Make a key.

    It lies in a file that nobody else can read; what others need is printed by `weft key export`.
    """
    from weft.kernel.clock import system_random

    public_key = key_ring().create(name, system_random(32), new_passphrase() if passphrase else None)
    call.answer(
        KeyForm(name=name, key=public_key.bytes.hex()),
        ["made the key ", Span(name, "label"), f" {public_key.bytes.hex()[:SHOWN]}"],
    )
    call.note(f"give others its public part: `weft key export {shell_word(name)}`")


@weft_command("list")
def list_(call: Call) -> None:
    """List the keys that are yours, and those that you trust."""
    ring = key_ring()
    own, trusted = ring.own(), ring.trusted()
    keys = [
        KeyForm(name=key.name, key=key.bytes.hex(), own=mine)
        for mine, ring_keys in ((True, own), (False, trusted))
        for key in ring_keys
    ]
    if not keys and not call.json:
        call.note("no keys yet: `weft key create NAME` makes one, `weft key trust FILE` takes somebody's")
        return
    lines: list[Line] = [
        [Span(key.name, "label"), f"  {key.key[:SHOWN]}  {'yours' if key.own else 'trusted'}"] for key in keys
    ]
    call.answer(keys, *lines)


@weft_command("export")
@click.argument("name", shell_complete=complete_keys)
def export(call: Call, name: str) -> None:
    """Print the public part of a key.

    The one line may be shown to anybody; whoever has it can tell what you signed.
    """
    key = key_ring().public(name)
    call.answer(KeyForm(name=key.name, key=key.bytes.hex(), line=key.line), [key.line.rstrip("\n")])


@weft_command("trust")
@click.argument("file", type=click.Path(), required=False)
@click.option("--name", metavar="NAME", help="Know it by another name than its own.")
def trust(call: Call, file: str | None, name: str | None) -> None:
    """Believe somebody's signatures from now on.

    FILE holds the line that their `weft key export` printed; - or none is standard input. Make sure that it comes from
    them: nothing in a key says whose it is.
    """
    line = read_input(file, "name a file with a public key, or pipe one in").decode("utf-8", "replace")
    key = key_ring().trust(line, name)
    call.answer(KeyForm(name=key.name, key=key.bytes.hex()), ["trusting ", Span(key.name, "label")])


@weft_command("delete")
@click.argument("name", shell_complete=complete_keys)
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
def delete(call: Call, name: str, yes: bool) -> None:
    """Delete a key of yours, or trust somebody's no longer.

    What was signed stays signed. A private key is gone for good.
    """
    ring = key_ring()
    ring.public(name)
    confirm(call, f"delete the key {name}?", "say --yes; a private key is gone for good", is_sure=yes)
    private = ring.delete(name)
    call.answer(DeletedKey(name=name, private=private), ["deleted the key ", Span(name, "label")])


HELP = """Manage the keys that bundles are signed with, and trust others'.

They lie in your configuration folder, each private one readable by you alone.
"""
command = group("key", HELP, create, list_, export, trust, delete)
