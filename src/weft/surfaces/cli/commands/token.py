"""`weft token`: let another process act for you, with less, until a time."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import complete_programs
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.kernel.authority import Principal, Rights
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.surfaces.wire.tokens import TokenForm

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_DAYS = 366
_DURATION = re.compile(r"(\d{1,6})([smhd])")
_ID = re.compile(r"[0-9a-f]{32}")


class Duration(click.ParamType[int]):
    """How long from now, in milliseconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _DURATION.fullmatch(str(value))
        length = 0 if match is None else int(match[1]) * UNITS_MS[match[2]]
        if not 0 < length <= LONGEST_DAYS * UNITS_MS["d"]:
            self.fail(f"{value!r:.40} is no duration: write 30m, 8h or 7d, at most {LONGEST_DAYS}d", param, ctx)
        return length


allow_option = click.option(
    "--allow", multiple=True, metavar="PATTERN", help="A right it has, as 'tool:shell(git *)'. Default: all."
)
deny_option = click.option("--deny", multiple=True, metavar="PATTERN", help="A right it lacks; deny wins.")
credential_option = click.option(
    "--credential", "credentials", multiple=True, metavar="ID", help="A credential it may use. Default: all."
)
out_option = click.option(
    "--out", type=click.Path(), metavar="FILE", help="Write it to a file that only you can read, instead of here."
)


@weft_command("create")
@click.option(
    "--as",
    "agent",
    metavar="NAME",
    shell_complete=complete_programs("agent", "human"),
    help="Who acts with it, on your behalf.",
)
@allow_option
@deny_option
@credential_option
@click.option(
    "--expires", type=Duration(), default="1h", metavar="TIME", help="How long it counts: 30m, 8h, 7d. Default: 1h."
)
@out_option
def create(
    call: Call,
    agent: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    credentials: tuple[str, ...],
    expires: int,
    out: str | None,
) -> None:
    """Sign a token.

    Whoever holds it acts on your behalf, with no more than it says, until it expires or you revoke it. Give it to a
    process by a file, a descriptor or a variable, never as an argument: others can read those.
    """
    from weft.runtime.egress.context_tokens import sign
    from weft.surfaces.cli.credentials import person_acting
    from weft.surfaces.cli.token_files import root_key

    call.ensure_owner("token create")
    context = person_acting().child(rights=_rights(allow, deny), credentials=credentials or None)
    if agent is not None:
        context = context.delegate(_acting(call, agent))
    token = sign(context, root_key(), expires_ms=_now_ms() + expires, begins_with_owner=True)
    _answer_token(call, token, out)


@weft_command("attenuate")
@click.argument("file", type=click.Path(), required=False)
@click.option("--as", "agent", metavar="NAME", help="An agent to whom it is handed, who then acts with it.")
@allow_option
@deny_option
@credential_option
@click.option("--expires", type=Duration(), metavar="TIME", help="Let it count for less long: 30m, 8h, 7d.")
@out_option
def attenuate(
    call: Call,
    file: str | None,
    agent: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    credentials: tuple[str, ...],
    expires: int | None,
    out: str | None,
) -> None:
    """Make a token that may do less, to hand it on.

    Of the token in FILE, or of the one that this process was given. No private key is needed. The token that it is made
    from still counts; who revokes that one revokes both.
    """
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.runtime.egress import context_tokens
    from weft.surfaces.cli.token_files import public_keys

    principal = None if agent is None else Principal(PrincipalKind.AGENT, agent)
    narrower = context_tokens.attenuate(
        _named_token(call, file),
        public_keys(),
        rights=_rights(allow, deny),
        principal=principal,
        credentials=credentials or None,
        expires_ms=None if expires is None else _now_ms() + expires,
    )
    _answer_token(call, narrower, out)


@weft_command("show")
@click.argument("file", type=click.Path(), required=False)
def show(call: Call, file: str | None) -> None:
    """Show who acts with a token, with which rights, and until when.

    Of the token in FILE, or of the one that this process was given.
    """
    form = _form(_inspected(_named_token(call, file)))
    call.answer(form, *_lines(form))


@weft_command("revoke")
@click.argument("id", required=False)
@click.option("--file", type=click.Path(), metavar="FILE", help="Revoke the token in this file.")
def revoke(call: Call, id: str | None, file: str | None) -> None:
    """Let nobody act with a token any more, nor with one that was made from it.

    ID is the one that `weft token show` and `weft token create` tell.
    """
    from weft.surfaces.cli.token_files import revoke_token

    call.ensure_owner("token revoke")
    if (id is None) == (file is None):
        raise click.UsageError("name the ID of a token, or a file with --file")
    token_id = id if file is None else _inspected(_named_token(call, file)).id
    if token_id is None or not _ID.fullmatch(token_id):
        raise InvalidInput("this is no id of a token", "it has 32 hex digits; `weft token show` tells it")
    revoked = revoke_token(token_id, _now_ms())
    call.answer(revoked, ["revoked ", Span(revoked.id, "id")])


@weft_command("list-revoked")
def list_revoked(call: Call) -> None:
    """List the tokens that were revoked."""
    from weft.surfaces.cli.token_files import load_revoked

    call.ensure_owner("token list-revoked")
    tokens = load_revoked()
    if call.json:
        call.document(list(tokens))
    elif not tokens:
        call.note("no token was revoked")
    else:
        call.screen.table([(Span(one.id, "id"), local_time(one.revoked_at)) for one in tokens], ("id", "revoked"))


@weft_command("rotate")
@click.option("--forget", is_flag=True, help="Refuse every token that was signed before.")
def rotate(call: Call, forget: bool) -> None:
    """Sign with a new root key from now on.

    The private part of the key before is deleted. Tokens that it signed count until they expire, unless --forget.
    """
    from weft.surfaces.cli.token_files import public_keys, rotate_root_key
    from weft.surfaces.wire.tokens import RotatedKey

    call.ensure_owner("token rotate")
    key = rotate_root_key(forget=forget)
    form = RotatedKey(key=key.number, keys=tuple(sorted(public_keys())))
    call.answer(form, [f"tokens are signed with key {form.key} from now on"])


def _acting(call: Call, name: str) -> Principal:
    """Whom the ledger knows by this name; one that another ledger made does not act."""
    from weft.kernel.authority import Principal, PrincipalKind
    from weft.programs import Programs
    from weft.programs.program_writer import ensure_own

    with call.reading() as ledger:
        program = Programs(ledger).get(name, "agent", "human")
    if program.kind == "agent":
        ensure_own(program)
    return Principal(PrincipalKind(program.kind), program.name)


def _rights(allow: tuple[str, ...], deny: tuple[str, ...]) -> Rights:
    from weft.kernel.authority import EVERYTHING, rights

    return rights(allow or ("*",), deny) if allow or deny else EVERYTHING


def _now_ms() -> int:
    from weft.kernel.clock import SystemClock

    return SystemClock().now_ms()


def _named_token(call: Call, file: str | None) -> str:
    """The token in a file, or the one that this process was given."""
    from weft.surfaces.cli.token_files import read_token

    if file is not None and not os.path.exists(file) and len(file) > len("/dev/fd/") + 255:
        raise InvalidInput("this is no file", "a token is never an argument: others can read those; write it to a file")
    if file is None and call.token is None:
        raise click.UsageError("name a FILE with a token, or set WEFT_TOKEN")
    return call.token_text if file is None else read_token(file)


def _inspected(token: str) -> TokenContent:
    from weft.runtime.egress.context_tokens import inspect
    from weft.surfaces.cli.token_files import public_keys

    return inspect(token, public_keys())


def _form(content: TokenContent) -> TokenForm:
    from weft.surfaces.cli.token_files import load_revoked
    from weft.surfaces.wire.tokens import TokenForm

    context = content.context
    is_revoked = not content.is_unrevoked({one.id for one in load_revoked()})
    return TokenForm(
        id=content.id,
        ids=content.ids,
        state="revoked" if is_revoked else "expired" if _now_ms() >= content.expires_ms else "valid",
        chain=tuple(map(str, context.chain)),
        rights=context.rights.layers,
        credentials=None if context.credentials is None else tuple(sorted(context.credentials)),
        expires_at=content.expires_ms,
        key=content.key_number,
    )


def _lines(form: TokenForm) -> list[Line]:
    """One line for each thing; every line of rights has to allow."""
    rights = [
        f"{' '.join(layer.allow) or 'nothing'}{' but ' if layer.deny else ''}{' '.join(layer.deny)}"
        for layer in form.rights
    ]
    rows = [
        ("id", form.id),
        ("state", form.state),
        ("acts", " for ".join(reversed(form.chain))),
        *(("may", text) for text in rights or ["everything"]),
        ("keys", "all that were given to them" if form.credentials is None else " ".join(form.credentials) or "none"),
        ("until", local_time(form.expires_at)),
    ]
    return [[Span(f"{name:6}", "dim"), text] for name, text in rows]


def _answer_token(call: Call, token: str, out: str | None) -> None:
    """The token itself goes to standard output or into a private file, what it says to the error stream."""
    from msgspec import structs

    from weft.store.private_files import new_file

    form = _form(_inspected(token))
    if out is not None:
        with new_file(Path(out)) as file:
            file.write(token.encode() + b"\n")
        call.answer(structs.replace(form, file=out), ["wrote token ", Span(form.id, "id"), f" to {out}"])
    else:
        call.answer(structs.replace(form, token=token), [token])
    ends = f"`weft token revoke {shell_word(form.id)}` ends it"
    call.note(f"token {form.id}, until {local_time(form.expires_at)}; {ends}")


HELP = """Manage tokens, by which other processes act for you, with less, until a time.

A token is signed with a key that lies in your configuration folder. Whoever holds one can narrow it and hand it on; no
token made from it may do more. `weft --token-file FILE COMMAND`, or WEFT_TOKEN, acts with it.
"""
command = group("token", HELP, create, attenuate, show, revoke, list_revoked, rotate)
