"""`weft trust`, `token`, `credential` and `key`: which ledgers and folders may act for a
person, who else may act and with what, where keys are found, and which keys bundles are signed
with. Also the question about a folder for work.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.authority import SENDING
from weft.kernel.errors import InvalidInput, LedgerMissing, NotApplicable
from weft.kernel.typed_names import Site, shell_line, shell_word
from weft.surfaces.cli.arguments import WrittenPath, read_input
from weft.surfaces.cli.command_line import Call, confirm, group, is_person_there, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import complete_programs
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.trust import allowed_lines, describe_trust, is_granted
from weft.surfaces.cli.user_files import complete_keys, find_ledger, key_ring, new_passphrase
from weft.surfaces.cli.work.sandbox_access import is_plainly_seen
from weft.surfaces.plain_text import safe_lines
from weft.verbs.answers import RevokedFolder, RevokedTrust, ShownSecret
from weft.verbs.exchange_answers import DeletedKey, KeyForm, Removed

if TYPE_CHECKING:
    from weft.kernel.authority import Principal, Rights
    from weft.ledger.api import Ledger
    from weft.runtime.assembly.system_prompts import ChangedRules
    from weft.runtime.egress.context_tokens import TokenContent
    from weft.store.replicas import StoredTrust, TrustedFolder, TrustedLedger
    from weft.verbs.answers import TokenForm


# --- `weft trust`: which ledgers may act for this person.


@weft_command("trust")
@click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path())
@click.argument("path", required=False, metavar="[PATH]", type=click.Path())
@click.option(
    "--show",
    is_flag=True,
    help="List what trusting the ledger allows, and change nothing. With FOLDER: let commands see the file PATH of it.",
)
@click.option("--work", is_flag=True, help="Let agents work in FOLDER without asking; with --revoke, no longer.")
@click.option("--list", "listing", is_flag=True, help="List the ledgers and the folders that you trust.")
@click.option("--revoke", is_flag=True, help="Trust the ledger, or FOLDER, no longer, or hide PATH again.")
def trust_command(
    call: Call, folder: str | None, path: str | None, show: bool, work: bool, listing: bool, revoke: bool
) -> None:
    """Manage trust in ledgers, in folders' rules and in folders for work.

    In a ledger that is not trusted everything can be read and recorded, and nothing acts: no command is started, no
    connection opened, no key sent, no program run, no approval taken, no history imported. Ledgers that you make,
    clone, copy or back up with weft are trusted. What you trust is kept in your state folder: by path, owner, inode
    and replica, or by server, database, schema and replica. What takes the place of a trusted ledger is not trusted.

    With FOLDER: its file AGENTS.md is read into the system prompt of messages that are sent from there. The file of a
    folder that is not trusted is never read. Where the file changed since, agents are told what it said before, until
    you allow the change: at a terminal you are asked when you send a message, and this command shows it.

    With FOLDER --work: in turns that you begin there, or in a folder in it, agents change files and run commands in
    the sandbox without asking, where no network is granted and `weft undo` can take it back, the git repository too.
    All else is asked about as before. It includes what FOLDER alone allows.

    With FOLDER --show PATH: commands in the sandbox that work in FOLDER see that file, which is hidden from them since
    such files commonly hold secrets. --revoke with FOLDER and PATH hides it again.

    At a terminal you are asked about a ledger that you did not make. AGENTS.md is also read in sessions whose
    configuration names FOLDER as workspace. One that leads out of its folder, is no regular file, is longer than 64 KiB
    or is not UTF-8 is not read: its messages are refused with a word about it. docs/security.md says what the trust
    rests on, and docs/tools.md#files-of-secrets which files are hidden.
    """
    if show + listing + revoke > 1:
        raise click.UsageError("--show, --list and --revoke exclude each other")
    is_about_file, takes_file = path is not None, show or revoke
    if work and (folder is None or is_about_file or show):
        raise click.UsageError("--work stands with FOLDER, and perhaps with --revoke")
    if folder is not None and (listing or (is_about_file and not takes_file) or (show and not is_about_file)):
        raise click.UsageError("FOLDER stands alone, with --revoke, with --show PATH, or with --revoke PATH")
    if folder is not None and path is not None:
        _show_file(call, folder, path, revoke=revoke)
        return
    if folder is not None:
        _trust_folder(call, folder, work=work, revoke=revoke)
        return
    if listing:
        _list(call)
        return
    if revoke:
        _revoke(call)
        return
    with call.reading() if show else call.copying() as ledger:
        trust = _stored(ledger)
        is_new = not (show or trust.is_trusted)
        if is_new:
            trust.allow()
        answer = describe_trust(ledger, trust)
    if call.json:
        call.document(answer)
        return
    state = f"is trusted: {answer.how}" if answer.trusted else f"is not trusted: {answer.doubt}"
    call.screen.show(Span(answer.ledger, "heading"), f" {state}")
    for line in allowed_lines(answer):
        call.screen.show(*line)
    if is_new:
        call.note(undo("--ledger", answer.ledger, "trust", "--revoke"))


def _revoke(call: Call) -> None:
    """By its place: the ledger itself may be gone, or another one by now."""
    place = find_ledger(call.ledger)
    if Site.of(place) is Site.FILE:
        place = os.path.realpath(place)
    else:
        with call.reading() as ledger:
            place = _stored(ledger).identity.place
    was_trusted = call.trust_store.revoke(place)
    call.answer(
        RevokedTrust(ledger=place, was_trusted=was_trusted),
        [Span(place, "heading"), " is trusted no longer" if was_trusted else " was not trusted; nothing changed"],
    )


def _trust_folder(call: Call, folder: str, *, work: bool, revoke: bool) -> None:
    place = os.path.realpath(folder)
    if revoke:
        if work:
            _revoke_work(call, folder)
            return
        was_trusted = call.trust_store.revoke_folder(folder)
        what = " is trusted no longer" if was_trusted else " was not trusted; nothing changed"
        call.answer(RevokedFolder(folder=place, was_trusted=was_trusted), [Span(place, "heading"), what])
        return
    if work:
        what = " is trusted for work: agents change files and run commands in the sandbox there without asking"
        call.answer(allow_work(call, folder), [Span(place, "heading"), what])
        return
    trusted = _allow_folder(call, folder)
    call.answer(
        trusted, [Span(place, "heading"), " is trusted: agents are told its AGENTS.md in messages sent from there"]
    )
    call.note(undo("trust", place, "--revoke"))


def _allow_folder(call: Call, folder: str, *, for_work: bool = False) -> TrustedFolder:
    """Trust a folder, with the rules that stand there now. Where the person trusted others there, they see what
    changed, and at a terminal they are asked about that alone."""
    from weft.runtime.assembly.system_prompts import load_rules
    from weft.surfaces.cli.work.sandbox_access import changed_rules_words, hidden_files, rules_change

    store = call.trust_store
    was_trusted = store.is_folder_trusted(folder)
    trusted = store.allow_folder(folder, for_work=for_work)
    try:
        if not was_trusted:
            rules = load_rules(folder, hidden_files)
            store.take_rules(folder, None if rules is None else rules.text)
        elif (change := rules_change(folder)) is not None and change.problem:
            call.note(Span(changed_rules_words(change), "warn"))
        elif change is not None:
            _show_change(call, change)
            _take_or_refuse(call, change, is_taken=not is_person_there(call) or is_granted(RULES_QUESTION))
    except InvalidInput as error:  # as each message that is sent from there will say
        call.note(Span(str(error), "warn"))
    return trusted


def ask_about_rules(call: Call, folder: str | None) -> None:
    """Where the rules of a folder that the person trusts are not those that they saw, show them the change and ask,
    once. Where nobody can be asked, agents are told what the person saw, and whoever plans the turn says so."""
    from weft.surfaces.cli.work.sandbox_access import rules_change

    if folder is None or call.quiet or not is_person_there(call):
        return
    change = rules_change(folder)
    if change is not None and not change.is_refused and not change.problem:  # whoever plans the turn says what it is
        _show_change(call, change)
        _take_or_refuse(call, change, is_taken=is_granted(RULES_QUESTION))


def _show_change(call: Call, change: ChangedRules) -> None:
    from weft.surfaces.cli.work.sandbox_access import changed_rules_words

    call.note(changed_rules_words(change))
    for line in safe_lines(change.difference):
        call.note(f"  {line}")


def _take_or_refuse(call: Call, change: ChangedRules, *, is_taken: bool) -> None:
    """Of the very words that were shown."""
    place = change.seen.folder.place
    if is_taken:
        call.trust_store.take_rules(place, change.present)
        call.note("agents are told it as it is now" if change.present is not None else "agents are told no rules there")
        return
    call.trust_store.refuse_rules(place, change.digest)
    call.note("agents are told what you saw before, if anything")


def _revoke_work(call: Call, folder: str) -> None:
    place, granting = os.path.realpath(folder), call.trust_store.revoke_work(folder)
    if granting is None:
        what = " was not trusted for work; nothing changed"
    elif granting.place == place:
        what = " is trusted for work no longer; agents are told its rules still: --revoke without --work ends that"
    else:
        what = f" is trusted for work no longer; {granting.place}, which it lies in, still is"
    call.answer(RevokedFolder(folder=place, was_trusted=granting is not None), [Span(place, "heading"), what])


def _show_file(call: Call, folder: str, path: str, *, revoke: bool) -> None:
    place = os.path.realpath(folder)
    if revoke:
        was_shown = call.trust_store.hide_file(folder, path)
        state = " is hidden from commands again" if was_shown else " was not shown; nothing changed"
        call.answer(ShownSecret(folder=place, path=path, is_shown=False), [Span(path, "heading"), state])
        return
    if is_plainly_seen(place, path):
        state = f" is not hidden: commands that work in {place} see it already; nothing changed"
        call.answer(ShownSecret(folder=place, path=path, is_shown=True), [Span(path, "heading"), state])
        return
    shown = call.trust_store.show_file(folder, path)
    answer = ShownSecret(folder=place, path=shown.path, is_shown=True)
    call.answer(answer, [Span(shown.path, "heading"), f" is seen by commands that work in {place}"])
    call.note(undo("trust", place, "--revoke", shown.path))


def _stored(ledger: Ledger) -> StoredTrust:
    from weft.store.replicas import StoredTrust

    if not isinstance(ledger.trust, StoredTrust):
        raise NotApplicable("a ledger in memory is its maker's own", "name a file or a server")
    return ledger.trust


def _change(call: Call, trusted: TrustedLedger) -> str:
    """What became of a file that was trusted."""
    place = trusted.identity.place
    if trusted.identity.inode is None:
        return ""
    if not os.path.exists(place):
        return ", gone"
    return "" if call.trust_store.is_file_trusted(place) else ", another file is there now: not trusted"


def _list(call: Call) -> None:
    ledgers, folders = call.trust_store.ledgers(), call.trust_store.folders()
    shown = [ShownSecret(folder=file.folder.place, path=file.path, is_shown=True) for file in call.trust_store.shown()]
    if call.json:
        call.documents([*ledgers, *folders, *shown])
        return
    for trusted in ledgers:
        call.screen.show(Span(trusted.identity.place, "heading"), f"  {trusted.how}{_change(call, trusted)}")
    for folder in folders:
        is_same = call.trust_store.is_folder_trusted(folder.place)
        change = _rules_state(folder.place) if is_same else ", gone, or another folder is there now: not trusted"
        call.screen.show(Span(folder.place, "heading"), f"  folder{', for work' if folder.is_for_work else ''}{change}")
    for file in shown:
        call.screen.show(Span(os.path.join(file.folder, file.path), "heading"), "  seen by commands")
    if not ledgers and not folders:
        call.note("you trust no ledger yet: `weft init` makes one")


RULES_QUESTION = "are agents to be told it as it is now?"


def _rules_state(folder: str) -> str:
    from weft.surfaces.cli.work.sandbox_access import rules_change

    change = rules_change(folder)
    if change is None:
        return ""
    return ", its AGENTS.md cannot be read" if change.problem else ", its AGENTS.md changed since you saw it"


# --- Folders that the person at the terminal trusts for work, and the question about one that they do not trust yet.

WORK_LINES = (
    "they change files there, and run commands in the sandbox: without a network, without files of",
    "secrets, and nothing outside of the folder can be written but the git repository it belongs to",
    "`weft undo` takes a turn back, with the repository; whatever leaves the sandbox is asked about",
    "they are told the rules in its AGENTS.md",
)


def allow_work(call: Call, folder: str) -> TrustedFolder:
    """Trust a folder for work, and say how that is taken back. Raises InvalidInput for one that holds more than a
    project: what commands write in it is not asked about."""
    place, home = os.path.realpath(folder), os.path.realpath(os.path.expanduser("~"))
    if place == home or home.startswith(f"{place.rstrip('/')}/"):
        raise InvalidInput(f"{place} holds your whole home folder", "trust the folder of a project for work")
    trusted = _allow_folder(call, folder, for_work=True)
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


# --- `weft token`: let another process act for you, with less, until a time.

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


_READING = ("*:read",)
SCOPES = {
    "read": _READING,
    "write": (*_READING, *SENDING, "session:create", "session:move", "session:rename", "room:post"),
}
"""`write` has what sending, branching and naming asks for. Nothing is deleted, erased or configured with it."""
SCOPED_EXPIRES, PLAIN_EXPIRES = "90d", "1h"

allow_option = click.option(
    "--allow", multiple=True, metavar="PATTERN", help="A right it has, as 'tool:shell(git *)'. Default: all."
)
deny_option = click.option("--deny", multiple=True, metavar="PATTERN", help="A right it lacks; deny wins.")
credential_option = click.option(
    "--credential", "credentials", multiple=True, metavar="ID", help="A credential it may use. Default: all."
)
out_option = click.option(
    "--out",
    type=WrittenPath(),
    metavar="FILE",
    help="Write it to a file that only you can read, instead of printing it.",
)


@weft_command("create")
@click.option(
    "--as",
    "agent",
    metavar="NAME",
    shell_complete=complete_programs("agent", "human"),
    help="Who acts with it, on your behalf.",
)
@click.option(
    "--scope",
    type=click.Choice(tuple(SCOPES)),
    help="Rights by one word, beside those of --allow: to read, or to write too.",
)
@allow_option
@deny_option
@credential_option
@click.option(
    "--expires",
    type=Duration(),
    metavar="TIME",
    help=f"Lifetime: 30m, 8h, 7d. Default: {PLAIN_EXPIRES}; with --scope, {SCOPED_EXPIRES}.",
)
@out_option
def create_token(
    call: Call,
    agent: str | None,
    scope: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    credentials: tuple[str, ...],
    expires: int | None,
    out: str | None,
) -> None:
    """Sign a token.

    Whoever holds it acts on your behalf, with no more than it says, until it expires or you revoke it. Give it to a
    process by a file, a descriptor or a variable, never as an argument: others can read those.

    `--scope read` allows reading all that you may read. `--scope write` allows also sending messages, recording and
    merging turns, forking, moving and renaming sessions, and posting in rooms; agents that are written to use
    the models and tools that they have. It deletes and erases nothing, answers no request, and configures nothing.

    It is printed, or written to a file.
    """
    from weft.runtime.egress.context_tokens import sign
    from weft.surfaces.cli.credentials import person_acting, root_key

    call.ensure_owner("token create")
    allow = (*SCOPES.get(scope or "", ()), *allow)
    if expires is None:
        expires = Duration().convert(PLAIN_EXPIRES if scope is None else SCOPED_EXPIRES, None, None)
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
@click.option("--expires", type=Duration(), metavar="TIME", help="Shorten its lifetime: 30m, 8h, 7d.")
@out_option
def attenuate_token(
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
    from weft.surfaces.cli.credentials import public_keys

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
def show_token(call: Call, file: str | None) -> None:
    """Show who acts with a token, with which rights, and until when.

    Of the token in FILE, or of the one that this process was given.

    An action must be allowed by every line of rights.
    """
    form = _token_form(_inspect_token(_named_token(call, file)))
    call.answer(form, *_token_lines(form))


@weft_command("revoke")
@click.argument("id", required=False)
@click.option("--file", type=click.Path(), metavar="FILE", help="Revoke the token in this file.")
def revoke_token_id(call: Call, id: str | None, file: str | None) -> None:
    """Revoke a token, and with it every token that was made from it.

    It is refused with your configuration, and by every server of the ledger, wherever that runs.

    ID is the one that `weft token show` and `weft token create` tell.
    """
    from weft.surfaces.cli.credentials import revoke_token

    call.ensure_owner("token revoke")
    if (id is None) == (file is None):
        raise click.UsageError("name the ID of a token, or a file with --file")
    token_id = id if file is None else _inspect_token(_named_token(call, file)).id
    if token_id is None or not _ID.fullmatch(token_id):
        raise InvalidInput("this is no id of a token", "it has 32 hex digits; `weft token show` tells it")
    revoked = revoke_token(token_id, _now_ms())
    _revoke_in_ledger(call, token_id)
    call.answer(revoked, ["revoked ", Span(revoked.id, "id")])


def _revoke_in_ledger(call: Call, token_id: str) -> None:
    """In the ledger that the command is about as well, if there is one: servers on other machines look there."""
    from weft.programs.accounts import Accounts

    try:
        find_ledger(call.ledger)
    except LedgerMissing:
        return
    with call.writing() as ledger:
        Accounts(ledger).revoke(token_id)


@weft_command("list-revoked")
def list_revoked(call: Call) -> None:
    """List the tokens that were revoked."""
    from weft.surfaces.cli.credentials import load_revoked

    call.ensure_owner("token list-revoked")
    tokens = load_revoked()
    if call.json:
        call.document(list(tokens))
    elif not tokens:
        call.note("no token was revoked")
    else:
        call.screen.table([(Span(token.id, "id"), local_time(token.revoked_at)) for token in tokens], ("id", "revoked"))


@weft_command("rotate")
@click.option("--forget", is_flag=True, help="Refuse every token that was signed before.")
def rotate_token_key(call: Call, forget: bool) -> None:
    """Sign with a new root key from now on.

    The private part of the key before is deleted. Tokens that it signed count until they expire, unless --forget.
    """
    from weft.surfaces.cli.credentials import public_keys, rotate_root_key
    from weft.verbs.answers import RotatedKey

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
    from weft.surfaces.cli.credentials import read_token

    if file is not None and not os.path.exists(file) and len(file) > len("/dev/fd/") + 255:
        raise InvalidInput("this is no file", "a token is never an argument: others can read those; write it to a file")
    if file is None and call.token is None:
        raise click.UsageError("name a FILE with a token, or set WEFT_TOKEN")
    return call.token_text if file is None else read_token(file)


def _inspect_token(token: str) -> TokenContent:
    from weft.runtime.egress.context_tokens import inspect
    from weft.surfaces.cli.credentials import public_keys

    return inspect(token, public_keys())


def _token_form(content: TokenContent) -> TokenForm:
    from weft.surfaces.cli.credentials import load_revoked
    from weft.verbs.answers import TokenForm

    context = content.context
    is_revoked = not content.is_unrevoked({token.id for token in load_revoked()})
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


def _token_lines(form: TokenForm) -> list[Line]:
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

    form = _token_form(_inspect_token(token))
    if out is not None:
        with new_file(Path(out)) as file:
            file.write(token.encode() + b"\n")
        call.answer(structs.replace(form, file=out), ["wrote token ", Span(form.id, "id"), f" to {out}"])
    else:
        call.answer(structs.replace(form, token=token), [token])
    ends = f"`weft token revoke {shell_word(form.id)}` ends it"
    call.note(f"token {form.id}, until {local_time(form.expires_at)}; {ends}")


TOKEN_HELP = """Manage tokens, by which other processes act for you, with less, until a time.

A token is signed with a key that lies in your configuration folder. Whoever holds one can narrow it and hand it on; no
token made from it may do more. `weft --token-file FILE COMMAND`, or WEFT_TOKEN, acts with it.

docs/permissions.md#tokens says what is in one.
"""
token_command = group(
    "token", TOKEN_HELP, create_token, attenuate_token, show_token, revoke_token_id, list_revoked, rotate_token_key
)


# --- `weft credential`: where keys are found.

ACTIONS = ("add", "list", "remove")


def complete_ids(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.credentials import load_credentials

    try:
        return [item.id for item in load_credentials() if item.id.startswith(incomplete)]
    except (WeftError, OSError):
        return []


@weft_command("credential")
@click.argument("action", type=click.Choice(ACTIONS), default="list")
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--env", metavar="VARIABLE", help="The key is in this environment variable.")
@click.option("--cmd", metavar="COMMAND", help="This command prints the key.")
@click.option(
    "--origin", metavar="URL", help="The server it is for. Default: the one whose key VARIABLE usually holds."
)
@click.option(
    "--for", "given_to", multiple=True, metavar="PRINCIPAL", help="Who may have it, as agent:NAME. Default: all."
)
def credential_command(call: Call, action: str, id: str | None, **options: Any) -> None:
    """Manage credentials: where keys are found.

    A key itself is never kept, only the variable or the command it is read from, the one server it is for, and who may
    have it. Without an action the credentials are listed.

    docs/models.md tells how they are used.
    """
    has_options = any(options.values())
    if action == "list" and (id is not None or has_options):
        raise click.UsageError("list takes no id and no options of its own")
    if action != "list" and id is None:
        raise click.UsageError(f"{action} needs the id of a credential")
    if action == "remove" and has_options:
        raise click.UsageError("remove takes an id alone")
    {"add": _add, "list": _list_credentials, "remove": _remove}[action](call, id or "", options)


def _add(call: Call, id: str, options: dict[str, Any]) -> None:
    from weft.kernel.errors import LabelTaken
    from weft.runtime.egress.credentials import ORIGINS, Credential, checked_credential
    from weft.surfaces.cli.credentials import change_credentials

    env, cmd = options["env"], options["cmd"]
    if (env is None) == (cmd is None):
        raise click.UsageError("say where the key is found: --env VARIABLE or --cmd COMMAND")
    origin = options["origin"] or ORIGINS.get(env or "")
    if origin is None:
        raise click.UsageError("say which server it is for: --origin https://…")
    credential = checked_credential(
        Credential(id=id, origin=origin, env=env, command=_command_words(cmd), given_to=options["given_to"] or ("*",))
    )

    def change(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
        if any(item.id == id for item in credentials):
            raise LabelTaken(id, "a credential")
        return (*credentials, credential)

    change_credentials(change)
    call.answer(credential, [Span(id, "label"), f" is read from {_place_of_item(credential)} for {credential.origin}"])


def _command_words(cmd: str | None) -> tuple[str, ...]:
    try:
        return () if cmd is None else tuple(shlex.split(cmd))
    except ValueError as error:
        raise click.UsageError(f"--cmd: {error}") from None


def _place_of_item(item: Any) -> str:
    return f"${item.env}" if item.env else f"`{shell_line(item.command)}`"


def _list_credentials(call: Call, _: str, __: dict[str, Any]) -> None:
    from weft.surfaces.cli.credentials import load_credentials

    credentials = load_credentials()
    if call.json:
        call.document(list(credentials))
    elif not credentials:
        call.note("no credentials yet: `weft credential add anthropic --env ANTHROPIC_API_KEY`")
    else:
        rows = [
            (Span(item.id, "label"), _place_of_item(item), item.origin, ", ".join(item.given_to))
            for item in credentials
        ]
        call.screen.table(rows, ("id", "found in", "for", "given to"))


def _remove(call: Call, id: str, _: dict[str, Any]) -> None:
    from weft.kernel.errors import CredentialMissing
    from weft.runtime.egress.credentials import Credential
    from weft.surfaces.cli.credentials import change_credentials

    def change(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
        if not any(item.id == id for item in credentials):
            raise CredentialMissing(id, "there is none of this name")
        return tuple(item for item in credentials if item.id != id)

    change_credentials(change)
    call.answer(Removed(removed=id), [Span(id, "label"), " is no longer known; the key itself was never here"])


# --- `weft key`: the keys that bundles are signed with.

SHOWN = 16


@weft_command("create")
@click.argument("name")
@click.option("--passphrase", is_flag=True, help="Seal it with a passphrase, which is asked for.")
def create_key(call: Call, name: str, passphrase: bool) -> None:
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
def list_keys(call: Call) -> None:
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
def export_key(call: Call, name: str) -> None:
    """Print the public part of a key.

    The one line may be shown to anybody; whoever has it can tell what you signed.
    """
    key = key_ring().public(name)
    call.answer(KeyForm(name=key.name, key=key.bytes.hex(), line=key.line), [key.line.rstrip("\n")])


@weft_command("trust")
@click.argument("file", type=click.Path(), required=False)
@click.option("--name", metavar="NAME", help="Keep it under this name instead of its own.")
def trust_key(call: Call, file: str | None, name: str | None) -> None:
    """Trust somebody's public key.

    FILE holds the line that their `weft key export` printed; - or none is standard input. Make sure that it comes from
    them: nothing in a key says whose it is.
    """
    line = read_input(file, "name a file with a public key, or pipe one in").decode("utf-8", "replace")
    key = key_ring().trust(line, name)
    call.answer(KeyForm(name=key.name, key=key.bytes.hex()), ["trusting ", Span(key.name, "label")])


@weft_command("delete")
@click.argument("name", shell_complete=complete_keys)
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")
def delete_key(call: Call, name: str, yes: bool) -> None:
    """Delete a key of yours, or stop trusting somebody's.

    What was signed stays signed. A private key is gone for good.
    """
    ring = key_ring()
    ring.public(name)
    confirm(call, f"delete the key {name}?", "say --yes; a private key is gone for good", is_sure=yes)
    private = ring.delete(name)
    call.answer(DeletedKey(name=name, private=private), ["deleted the key ", Span(name, "label")])


KEY_HELP = """Manage the keys that bundles are signed with, and trust others'.

They lie in your configuration folder, each private one readable by you alone.
"""
key_command = group("key", KEY_HELP, create_key, list_keys, export_key, trust_key, delete_key)
