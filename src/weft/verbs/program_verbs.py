"""Programs of every kind: listed, shown, compared, configured, published and retired; tags, on them and on whatever
else has an id; and by kind providers, models, code, information and triggers.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from weft.kernel.enums import WEBHOOK_SCHEMES, MissedChoice, SessionPeriod, WebhookScheme
from weft.kernel.errors import InvalidInput, NotFound, quoted
from weft.kernel.typed_names import shell_word
from weft.ledger.api import Firing
from weft.programs.program_records import Difference, Program, ProgramChange, TaggedNode
from weft.verbs.answers import Answer, Listing, NodeTags
from weft.verbs.declaration import (
    Column,
    ExpectedVersion,
    Fields,
    OpenMode,
    ParameterGroup,
    Reason,
    RequestError,
    RetryKey,
    Shown,
    Table,
    Verb,
    VerbGroup,
    arg,
    fields_set,
    opt,
    program,
    verb,
)
from weft.verbs.program_answers import ListedTrigger, ShownTrigger

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs import Program, Programs


CONFIGURE = "program:configure"
TAG = "node:tag"

ProgramName = Annotated[
    str, arg("A program: its name, its id, or @(name); name:2 is its second configuration.", names=program())
]
ProgramKind = Literal["code", "provider", "model", "session", "agent", "task", "information", "human"]

program_group = VerbGroup(
    "program",
    """List, show, compare and retire programs of every kind.

    NAME is a program's name, its id, or @(name); name:2 is its second configuration.
    """,
)


# --- Programs of every kind: looked at.


@verb("program list")
def program_list(
    ledger: Ledger,
    kind: Annotated[ProgramKind | None, opt("Only programs of this kind.", "--type")] = None,
    deleted: Annotated[bool, opt("Also those that were deleted.", "--all")] = False,
) -> Listing[Program]:
    """List programs."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).all(kind, deleted=deleted))


@verb("program get")
def program_get(ledger: Ledger, name: ProgramName) -> Program:
    """Show a program, or with NAME:VERSION an earlier configuration of it."""
    from weft.programs import Programs

    return Programs(ledger).get(name)


@verb("program history")
def program_history(ledger: Ledger, name: ProgramName) -> Listing[ProgramChange]:
    """Show everything that happened to a program, the newest first."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).history(name))


@verb("program diff")
def program_diff(
    ledger: Ledger,
    name: ProgramName,
    before: Annotated[int | None, arg("The one version.")] = None,
    after: Annotated[int | None, arg("The other version.")] = None,
) -> Listing[Difference]:
    """Show where two versions of a program's configuration differ: by default the last two."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).diff(name, before, after))


# --- Programs of every kind: changed.


@verb("program configure", right=CONFIGURE, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def program_configure(
    ledger: Ledger,
    name: ProgramName,
    fields: Fields = None,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of a program's configuration; null takes one away."""
    from weft.programs import Programs

    changes = fields_set({}, fields)
    return Programs(ledger).change(name, changes, expected=expected, reason=reason, key=retry_key)


@verb("program revert", right=CONFIGURE, method="programs.revert", opens=OpenMode.WRITING, takes_actor=True)
def program_revert(
    ledger: Ledger,
    name: ProgramName,
    version: Annotated[int, arg("The version that it had.")],
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Return a program to an earlier version of its configuration."""
    from weft.programs import Programs

    return Programs(ledger).revert(name, version, expected=expected, reason=reason, key=retry_key)


@verb("program publish", right=CONFIGURE, method="programs.publish", opens=OpenMode.WRITING, takes_actor=True)
def program_publish(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Publish a draft."""
    from weft.programs import Programs

    return Programs(ledger).publish(name, reason=reason, key=retry_key)


@verb("program deprecate", right=CONFIGURE, method="programs.deprecate", opens=OpenMode.WRITING, takes_actor=True)
def program_deprecate(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Mark a program as deprecated."""
    from weft.programs import Programs

    return Programs(ledger).deprecate(name, reason=reason, key=retry_key)


@verb("program delete", right=CONFIGURE, method="programs.delete", opens=OpenMode.WRITING, takes_actor=True)
def program_delete(ledger: Ledger, name: ProgramName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Hide a program and free its name; its history stays."""
    from weft.programs import Programs

    return Programs(ledger).delete(name, reason=reason, key=retry_key)


# --- Tags.

NodeName = Annotated[str, arg("A node: a program, a session, a turn, or another by KIND:NAME.", names=program())]

tag_group = VerbGroup(
    "tag",
    """Tag nodes of any kind: programs, sessions, rooms, turns, messages, events, resources.

    NODE is a program, a session, a turn, a message or an event, or any node that `weft graph node` shows, as KIND:NAME
    where its name alone could be another one's.
    """,
)


@verb("tag add", right=TAG, method="programs.add_tags", opens=OpenMode.WRITING, takes_actor=True)
def tag_add(
    ledger: Ledger, node: NodeName, tags: Annotated[tuple[str, ...], arg("The tags.")], retry_key: RetryKey = None
) -> NodeTags:
    """Add tags."""
    from weft.programs import Programs

    return NodeTags(node=node, tags=Programs(ledger).add_tags(node, *tags, key=retry_key))


@verb("tag remove", right=TAG, method="programs.remove_tags", opens=OpenMode.WRITING, takes_actor=True)
def tag_remove(
    ledger: Ledger, node: NodeName, tags: Annotated[tuple[str, ...], arg("The tags.")], retry_key: RetryKey = None
) -> NodeTags:
    """Take tags away.

    Where one of them is not there, none is taken. With a retry key those that are not there are passed over: a first
    try may have taken them.
    """
    from weft.programs import Programs
    from weft.programs.lookups import checked_tags

    programs = Programs(ledger)
    there = programs.tags(node)
    missing = [tag for tag in checked_tags(tags) if tag not in there] if retry_key is None else []
    if missing:
        raise NotFound(f"tag on {node}", missing[0], f"`weft tag list {shell_word(node)}` lists its tags")
    return NodeTags(node=node, tags=programs.remove_tags(node, *tags, key=retry_key))


@verb("tag list")
def tag_list(ledger: Ledger, node: NodeName) -> NodeTags:
    """List the tags of a node."""
    from weft.programs import Programs

    return NodeTags(node=node, tags=Programs(ledger).tags(node))


TAGGED = Table(
    (
        Column("kind"),
        Column("node", "name", Shown.LABEL),
        Column("tags", lambda node: " ".join(node.tags)),
    ),
    "nothing has these tags; add one with `weft tag add NODE TAG`",
)


@verb("nodes", table=TAGGED)
def nodes(
    ledger: Ledger,
    tags: Annotated[tuple[str, ...], opt("Only what has this tag; repeatable.", "--tag", metavar="TAG")],
) -> Listing[TaggedNode]:
    """List everything that has a tag.

    With several, what has all of them.
    """
    from weft.programs import Programs

    return Listing(items=Programs(ledger).tagged(*tags))


# --- Programs of one kind: those verbs that differ by the kind alone.


def list_verb(name: str, kind: str, plural: str) -> Verb[[], Listing[Program]]:
    """The verb that lists the programs of one kind."""

    def listed(ledger: Ledger) -> Listing[Program]:
        from weft.programs import Programs

        return Listing(items=Programs(ledger).all(kind))

    listed.__name__, listed.__doc__ = f"{name}_list", f"List {plural}."
    return verb(f"{name} list")(listed)


def show_verb(kind: str, *, article: str = "a", whom: str = "") -> Verb[[str], Program]:
    """The verb that shows one program of a kind, which the help calls `whom`."""

    def shown(ledger: Ledger, name: str) -> Program:
        from weft.programs import Programs

        return Programs(ledger).get(name, kind)

    details = arg("Its name; with NAME:VERSION an earlier configuration of it.", names=program(kind))
    shown.__annotations__["name"] = Annotated[str, details]
    shown.__name__ = f"{kind}_show"
    shown.__doc__ = f"Show {article} {whom or kind}, or with NAME:VERSION an earlier configuration of it."
    return verb(f"{kind} show")(shown)


Draft = Annotated[bool, opt("Do not publish it yet.", "--draft")]
NewName = Annotated[str, arg("Its name.")]


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# --- Providers: where models are reached.

PROVIDER_TYPES = "anthropic, openai, google, openai-compatible, cloudflare-ai-gateway, local"

provider_group = VerbGroup(
    "provider",
    """Manage model providers: gateways, vendors, local servers.

    A provider's key is named by a variable of the environment and never stored.
    """,
)


def _check_provider(kind: str) -> None:
    if kind not in PROVIDER_TYPES.split(", "):
        near = get_close_matches(kind, PROVIDER_TYPES.split(", "), n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {PROVIDER_TYPES}"
        raise InvalidInput(f"nothing here speaks to providers of the type {quoted(kind)}", hint)


@verb(
    "provider create",
    right="program:provider:configure",
    method="programs.create",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_provider,
)
def provider_create(
    ledger: Ledger,
    name: NewName,
    kind: Annotated[str, opt(f"One of {PROVIDER_TYPES}.", "--type", metavar="TYPE")],
    base_url: Annotated[str | None, opt("The base URL of its API.", metavar="URL")] = None,
    key_env: Annotated[
        str | None, opt("The variable that holds its key; the key itself is never stored.", metavar="VAR")
    ] = None,
    fields: Fields = None,
    draft: Draft = False,
    retry_key: RetryKey = None,
) -> Program:
    """Make a provider."""
    from weft.programs import Programs

    config = fields_set(given(providerType=kind, baseUrl=base_url, apiKey=_variable(key_env)), fields)
    return Programs(ledger).create("provider", name, config, draft=draft, key=retry_key)


class ConfiguredProvider(Answer, frozen=True, kw_only=True):
    """`provider configure`: `dropped` are the fields that a provider that goes to somebody else now left behind."""

    DOCUMENT: ClassVar[str] = "program"
    program: Program
    dropped: tuple[str, ...]


@verb(
    "provider configure",
    right="program:provider:configure",
    method="programs.change",
    opens=OpenMode.WRITING,
    takes_actor=True,
)
def provider_configure(
    ledger: Ledger,
    name: Annotated[str, arg("A provider.", names=program("provider"))],
    base_url: Annotated[str | None, opt("The base URL of its API.", metavar="URL")] = None,
    key_env: Annotated[str | None, opt("The variable that holds its key.", metavar="VAR")] = None,
    fields: Fields = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> ConfiguredProvider:
    """Change some fields of a provider's configuration; null takes one away."""
    from weft.programs import Programs

    changes = fields_set(given(baseUrl=base_url, apiKey=_variable(key_env)), fields)
    programs = Programs(ledger)
    before = programs.get(name, "provider")
    changed = programs.change(before.id, changes, expected=expected, key=retry_key)
    dropped = tuple(field for field in before.config if field not in changed.config and field not in changes)
    return ConfiguredProvider(program=changed, dropped=dropped)


def _variable(name: str | None) -> str | None:
    return None if name is None else f"${{{name}}}"


provider_list = list_verb("provider", "provider", "providers")
provider_show = show_verb("provider")


# --- Models: what is asked, and how.

model_group = VerbGroup(
    "model",
    """Manage models: the provider's name of each, and its parameters.

    A situation's parameters stand in for the model's own when that situation is named.
    """,
)


class SampledWith(ParameterGroup, frozen=True, kw_only=True):
    """What a model is asked with."""

    temperature: Annotated[float | None, opt("Sampling temperature, 0 to 2.")] = None
    max_tokens: Annotated[int | None, opt("Maximum output tokens.")] = None
    top_p: Annotated[float | None, opt("Nucleus sampling, 0 to 1.")] = None

    def config(self) -> dict[str, Any]:
        value = self.temperature
        whole = int(value) if value is not None and value == int(value) else value
        return given(temperature=whole, maxTokens=self.max_tokens, topP=self.top_p)


NOTHING_SAMPLED = SampledWith()


@verb(
    "model create",
    right="program:model:configure",
    method="programs.create",
    opens=OpenMode.WRITING,
    takes_actor=True,
)
def model_create(
    ledger: Ledger,
    name: NewName,
    backend: Annotated[str, opt("The model's name at its provider.", metavar="MODEL")],
    provider: Annotated[str, opt("Its provider.", metavar="NAME", names=program("provider"))],
    sampled: SampledWith = NOTHING_SAMPLED,
    fields: Fields = None,
    draft: Draft = False,
    retry_key: RetryKey = None,
) -> Program:
    """Make a model."""
    from weft.programs import Programs

    config = fields_set({"modelId": backend, "provider": provider, **sampled.config()}, fields)
    programs = Programs(ledger)
    _ensure_sendable(programs, name, config)
    return programs.create("model", name, config, draft=draft, key=retry_key)


def _check_model(situation: str | None, sampled: SampledWith) -> None:
    if situation is not None and not sampled.config():
        raise RequestError("{situation} needs a parameter to set, such as {temperature}")


@verb(
    "model configure",
    right="program:model:configure",
    method="programs.change",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_model,
)
def model_configure(
    ledger: Ledger,
    name: Annotated[str, arg("A model.", names=program("model"))],
    backend: Annotated[str | None, opt("The model's name at its provider.", metavar="MODEL")] = None,
    provider: Annotated[str | None, opt("Its provider.", metavar="NAME", names=program("provider"))] = None,
    sampled: SampledWith = NOTHING_SAMPLED,
    situation: Annotated[str | None, opt("Set the parameters for this situation alone.", metavar="NAME")] = None,
    fields: Fields = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some fields of a model's configuration, or its parameters in one situation."""
    from weft.programs import Programs
    from weft.programs.program_records import merged

    asked = sampled.config()
    chosen = asked if situation is None else {"situations": {situation: asked}}
    changes = fields_set({**given(modelId=backend, provider=provider), **chosen}, fields)
    programs = Programs(ledger)
    before = programs.get(name, "model")
    _ensure_sendable(programs, name, merged(before.config, changes))
    return programs.change(before.id, changes, expected=expected, key=retry_key)


def _ensure_sendable(programs: Programs, name: str, config: dict[str, Any]) -> None:
    """Refuse what the model cannot be told (how to think, what to cache or answer), where its provider is known."""
    if not any(word in str(config) for word in ("thinking", "promptCache", "responseSchema")):
        return
    from weft.programs.program_kinds import MODEL
    from weft.runtime.assembly.turn_configuration import ensure_model_config

    MODEL.checked_config(config)
    try:
        provider = programs.get(str(config["provider"]), "provider")
    except NotFound:  # the refusal of the program itself says what is missing
        return
    ensure_model_config(config, name, lambda _: provider)


model_list = list_verb("model", "model", "models")
model_show = show_verb("model")


# --- Code and information.

code_list = list_verb("code", "code", "code programs")
InformationName = Annotated[str, arg("A piece of information.", names=program("information"))]
OF_INFORMATION = "program:information:configure"


@verb("info validate", right=OF_INFORMATION, method="programs.validate", opens=OpenMode.WRITING, takes_actor=True)
def info_validate(ledger: Ledger, name: InformationName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Validate a draft against its schema."""
    from weft.programs import Programs

    return Programs(ledger).validate(name, reason=reason, key=retry_key)


@verb("info activate", right=OF_INFORMATION, method="programs.activate", opens=OpenMode.WRITING, takes_actor=True)
def info_activate(ledger: Ledger, name: InformationName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Activate information that was validated or archived."""
    from weft.programs import Programs

    return Programs(ledger).activate(name, reason=reason, key=retry_key)


@verb("info archive", right=OF_INFORMATION, method="programs.archive", opens=OpenMode.WRITING, takes_actor=True)
def info_archive(ledger: Ledger, name: InformationName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Archive information."""
    from weft.programs import Programs

    return Programs(ledger).archive(name, reason=reason, key=retry_key)


@verb("info list")
def info_list(
    ledger: Ledger,
    kind: Annotated[str | None, opt("fact, schema, workflow or pattern.", "--type", metavar="TYPE")] = None,
    archived: Annotated[bool, opt("Also drafts and archived information.", "--all")] = False,
) -> Listing[Program]:
    """List active information."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).query(info_type=kind, archived=archived))


TRIGGER = "program:trigger:configure"
MOST_FIRINGS = 10_000
MOST_GAPS = 100

TriggerName = Annotated[str, arg("A trigger.", names=program("trigger"))]

trigger_group = VerbGroup(
    "trigger",
    """Manage triggers: messages sent by time, webhook, event or file.

    A trigger is a program with versions, tags and rights; a broker (`weft broker`) has it fire, each occasion once.
    docs/agents.md#triggers has the details.
    """,
)


# --- What sets a trigger off, what it says and to whom.

OCCASIONS = {
    "cron": "cron", "every": "interval", "at": "at", "webhook": "webhook", "event": "event", "file": "file",
    "task": "task", "room": "room",
}  # fmt: skip
"""By parameter that names what sets a trigger off, the field of the configuration that holds it."""
DETAILS = {
    "zone": ("cron", "at"), "secret": ("webhook",), "where": ("event",), "pattern": ("file",),
}  # fmt: skip
"""Parameters that say more of one thing that sets a trigger off, and of which."""
TARGETS = {
    "to": "persona", "session": "session", "thread": "thread", "smart": "smart", "sender": "sender", "post_to": "room",
}  # fmt: skip
"""By parameter that says where messages go, the field of the configuration that holds it."""


class TriggerSettings(ParameterGroup, frozen=True, kw_only=True):
    """What sets a trigger off, what it says and to whom."""

    cron: Annotated[
        str | None,
        opt("Fire at these times: five fields, such as '0 7 * * 1-5', or @daily.", metavar="EXPRESSION"),
    ] = None
    zone: Annotated[str | None, opt("The time zone of --cron (default: UTC) or of --at.", metavar="ZONE")] = None
    every: Annotated[str | None, opt("Fire again and again: each 90s, 15m, 2h, 1d or 1w.", metavar="INTERVAL")] = None
    at: Annotated[str | None, opt("Fire once: 2026-12-24T18:00Z, or 2026-12-24T18:00 with --zone.", metavar="TIME")] = (
        None
    )
    webhook: Annotated[
        WebhookScheme | None,
        opt(f"Fire at a webhook of {', '.join(WEBHOOK_SCHEMES[:-1])} or {WEBHOOK_SCHEMES[-1]}.", metavar="SCHEME"),
    ] = None
    secret: Annotated[str | None, opt("The variable that holds the secret of --webhook.", metavar="VARIABLE")] = None
    event: Annotated[str | None, opt("Fire at events of this kind in the ledger (docs/events.md).", metavar="KIND")] = (
        None
    )
    where: Annotated[
        tuple[str, ...],
        opt("With --event: only if this field has this value; repeatable.", metavar="FIELD=VALUE"),
    ] = ()
    file: Annotated[str | None, opt("Fire when files in this folder change.", metavar="DIR", is_path=True)] = None
    pattern: Annotated[
        tuple[str, ...], opt("With --file: only files such as '*.py'; repeatable.", metavar="PATTERN")
    ] = ()
    task: Annotated[str | None, opt("Fire when this task is completed.", metavar="TASK")] = None
    room: Annotated[str | None, opt("Fire at a message in this room.", metavar="ROOM")] = None
    message: Annotated[
        str | None, opt("What it sends; ${payload.FIELD}, ${time}, ${sessions} are put in.", metavar="TEXT")
    ] = None
    to: Annotated[
        str | None,
        opt("Who answers. Default: the agent that makes it; else session trigger:NAME.", metavar="AGENT"),
    ] = None
    session: Annotated[str | None, opt("The session that the message goes to.", metavar="SESSION")] = None
    thread: Annotated[str | None, opt("The turn that the message goes on from.", metavar="TURN")] = None
    smart: Annotated[
        str | None, opt("To the thread that the message fits, else to this session.", metavar="SESSION")
    ] = None
    sender: Annotated[
        str | None,
        opt("To one session for each sender; PLACE is where the payload names the sender.", metavar="PLACE"),
    ] = None
    post_to: Annotated[str | None, opt("The room that it is posted to, where --to answers.", metavar="ROOM")] = None
    include: Annotated[
        SessionPeriod | None,
        opt("List the sessions of yesterday, today or the week for ${sessions}.", metavar="PERIOD"),
    ] = None
    on_missed: Annotated[
        MissedChoice | None,
        opt("What to do about missed times: report, latest or all. Default: report.", metavar="CHOICE"),
    ] = None
    breaker: Annotated[int | None, opt("Errors in a row that pause it. Default: 5.", metavar="N", least=1)] = None


NOTHING_SET = TriggerSettings()


def trigger_config(settings: TriggerSettings, *, is_change: bool = False) -> dict[str, Any]:
    """The configuration that settings describe; in a change, what sets the trigger off need not be named."""
    from msgspec.structs import asdict

    chosen = {name: value for name, value in asdict(settings).items() if value not in (None, ())}
    has_occasion = any(name in chosen for name in (*OCCASIONS, *DETAILS))
    config: dict[str, Any] = {} if is_change and not has_occasion else {"on": _occasion(chosen)}
    to = {field: chosen[name] for name, field in TARGETS.items() if name in chosen}
    if to:
        config["to"] = to
    if "include" in chosen:
        config["include"] = {"sessions": chosen["include"]}
    for name, field in (("message", "message"), ("on_missed", "onMissed"), ("breaker", "breaker")):
        if name in chosen:
            config[field] = chosen[name]
    return config


def _occasion(chosen: Mapping[str, Any]) -> dict[str, Any]:
    import os

    zone = {"zone": chosen["zone"]} if "zone" in chosen else {}
    forms: dict[str, Any] = {
        "cron": lambda: {"expression": chosen["cron"], **zone},
        "at": lambda: {"time": chosen["at"], **zone} if zone else chosen["at"],
        "webhook": lambda: {"scheme": chosen["webhook"], "secret": _secret_variable(chosen.get("secret"))},
        "event": lambda: {
            "kind": chosen["event"],
            **({"filter": _filter(chosen["where"])} if "where" in chosen else {}),
        },
        "file": lambda: {
            "folder": os.path.abspath(chosen["file"]),
            **({"patterns": list(chosen["pattern"])} if "pattern" in chosen else {}),
        },
    }
    named = [name for name in OCCASIONS if name in chosen]
    if len(named) != 1:
        raise RequestError(
            "say once what sets it off: {cron}, {every}, {at}, {webhook}, {event}, {file}, {task} or {room}"
        )
    field = OCCASIONS[named[0]]
    for name, occasions in DETAILS.items():
        if name in chosen and field not in occasions:
            raise RequestError(f"only {' or '.join(f'{{{one}}}' for one in occasions)} takes {{{name}}}")
    return {field: forms[named[0]]() if named[0] in forms else chosen[named[0]]}


def _secret_variable(name: str | None) -> str:
    if not name or not name.isidentifier():
        raise RequestError("{webhook} needs the variable that holds its secret: name it with {secret}")
    return f"${{{name}}}"


def _filter(where: tuple[str, ...]) -> dict[str, Any]:
    import json

    fields: dict[str, Any] = {}
    for item in where:
        field, equals, value = item.partition("=")
        if not equals:
            raise RequestError("{where} {typed} is no FIELD=VALUE", typed=repr(item))
        try:
            fields[field] = json.loads(value)
        except ValueError:
            fields[field] = value
    return fields


def _check_create(settings: TriggerSettings) -> None:
    trigger_config(settings)


@verb(
    "trigger create",
    right=TRIGGER,
    method="programs.create",
    opens=OpenMode.WRITING,
    takes_actor=True,
    check=_check_create,
)
def trigger_create(
    ledger: Ledger,
    name: Annotated[str, arg("Its name.")],
    settings: TriggerSettings = NOTHING_SET,
    retry_key: RetryKey = None,
) -> Program:
    """Make a trigger: one thing that sets it off, a message, and where that goes. What it names must be there."""
    from weft.programs import Programs
    from weft.runtime.invoke.trigger_firing import ensure_there

    programs, config = Programs(ledger), trigger_config(settings)
    ensure_there(programs, config)
    return programs.create("trigger", name, config, key=retry_key)


@verb("trigger configure", right=TRIGGER, method="programs.change", opens=OpenMode.WRITING, takes_actor=True)
def trigger_configure(
    ledger: Ledger,
    name: TriggerName,
    settings: TriggerSettings = NOTHING_SET,
    fields: Fields = None,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Change some of a trigger's configuration; it begins anew. What sets it off, and where its message goes, are
    replaced as a whole."""
    from weft.programs import Programs
    from weft.programs.program_records import merged
    from weft.runtime.invoke.trigger_firing import ensure_there

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    before = trigger.config if isinstance(trigger.config, dict) else {}
    config = trigger_config(settings, is_change=True)
    changes = fields_set({field: _replacing(before.get(field), value) for field, value in config.items()}, fields)
    if not changes:
        raise RequestError("say what is to be changed")
    ensure_there(programs, merged(before, changes))
    return programs.change(trigger.id, changes, expected=expected, reason=reason, key=retry_key)


def _replacing(former: Any, value: Any) -> Any:
    """A value with which a change replaces a former one: what is not named again in an object is taken away."""
    if not isinstance(former, dict) or not isinstance(value, dict):
        return value
    return {**dict.fromkeys(former), **{field: _replacing(former.get(field), inner) for field, inner in value.items()}}


# --- Paused, resumed, deleted.


@verb("trigger pause", right=TRIGGER, method="programs.step_trigger", opens=OpenMode.WRITING, takes_actor=True)
def trigger_pause(ledger: Ledger, name: TriggerName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Keep a trigger from firing. What would have set it off meanwhile is passed over."""
    from weft.programs import Programs

    return Programs(ledger).step_trigger(name, "pause", reason=reason, key=retry_key)


@verb("trigger resume", right=TRIGGER, method="programs.step_trigger", opens=OpenMode.WRITING, takes_actor=True)
def trigger_resume(ledger: Ledger, name: TriggerName, reason: Reason = None, retry_key: RetryKey = None) -> Program:
    """Let a paused trigger fire again, from now on."""
    from weft.programs import Programs

    return Programs(ledger).step_trigger(name, "resume", reason=reason, key=retry_key)


@verb("trigger delete", right=TRIGGER, method="programs.delete", opens=OpenMode.WRITING, takes_actor=True)
def trigger_delete(
    ledger: Ledger,
    name: TriggerName,
    reason: Reason = None,
    expected: ExpectedVersion = None,
    retry_key: RetryKey = None,
) -> Program:
    """Delete a trigger. Messages that it sent stay where they are."""
    from weft.programs import Programs

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    return programs.delete(trigger.id, expected=expected, reason=reason, key=retry_key)


# --- Listed and shown, with what they did last and do next.


@verb("trigger list")
def trigger_list(ledger: Ledger) -> Listing[ListedTrigger]:
    """List triggers: what sets each off, when it is due next, what it did last, and how many times it missed."""
    from weft.programs import Programs

    programs, now_ms = Programs(ledger), _now_ms()
    triggers = [ListedTrigger(**_trigger_fields(programs, program, now_ms)) for program in programs.all("trigger")]
    return Listing(items=triggers)


@verb("trigger show")
def trigger_show(ledger: Ledger, name: TriggerName) -> ShownTrigger:
    """Show a trigger: its configuration, what it did last and does next, and the times that it missed."""
    from weft.programs import Programs

    programs = Programs(ledger)
    trigger = programs.get(name, "trigger")
    gaps = tuple(programs.missed_times(trigger.id, limit=MOST_GAPS))
    return ShownTrigger(**_trigger_fields(programs, trigger, _now_ms()), config=trigger.config, gaps=gaps)


@verb("trigger history")
def trigger_history(
    ledger: Ledger,
    name: TriggerName,
    limit: Annotated[
        int, opt("At most N firings. Default: 20.", "-n", "--limit", metavar="N", least=1, most=MOST_FIRINGS)
    ] = 20,
) -> Listing[Firing]:
    """Show when and why a trigger fired, the newest first, and what became of its messages."""
    from weft.programs import Programs

    return Listing(items=Programs(ledger).trigger_firings(name, limit=limit))


def _now_ms() -> int:
    from weft.kernel.clock import SystemClock

    return SystemClock().now_ms()


def _trigger_fields(programs: Programs, program: Program, now_ms: int) -> dict[str, Any]:
    config, fault = _read_trigger(program)
    firings = programs.trigger_firings(program.id, limit=1)
    missed = programs.missed_times(program.id, limit=MOST_GAPS)
    changes = programs.history(program.id)
    since = max((change.at for change in changes if change.kind != "trigger_paused"), default=0)
    reason = next((change.reason for change in changes if change.kind == "trigger_paused"), None)
    return {
        "id": program.id,
        "name": program.name,
        "state": program.state,
        "version": program.version,
        "foreign": program.foreign,
        "on": config.get("on", {}),
        "to": config.get("to", {}),
        "next_due": _next_due(programs, program, now_ms),
        "fired": firings[0] if firings else None,
        "missed": sum(gap.count for gap in missed if gap.noted_at >= since),
        "reason": reason if program.state == "paused" else None,
        "fault": fault,
    }


def _read_trigger(program: Program) -> tuple[dict[str, Any], str | None]:
    """The configuration of a trigger, and why it cannot be read where it cannot: another ledger may have written it."""
    from weft.kernel.errors import InvalidConfig
    from weft.runtime.invoke.trigger_firing import readable_config

    try:
        return readable_config(program), None
    except InvalidConfig as error:
        return {}, str(error)


def _next_due(programs: Programs, program: Program, now_ms: int) -> int | None:
    from weft.ledger.api import TriggerLog
    from weft.programs.triggers import first_due
    from weft.runtime.invoke.trigger_firing import find_ready

    ready = find_ready(TriggerLog(programs.ledger), program) if program.state == "active" else None
    return None if ready is None or ready.schedule is None else first_due(ready.schedule, now_ms)
