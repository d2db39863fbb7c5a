"""Programs of every kind: listed, shown, compared, configured, published and retired; tags, on them and on whatever
else has an id; and by kind providers, models, code and information.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from weft.kernel.errors import InvalidInput, NotFound, quoted
from weft.kernel.typed_names import shell_word
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

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs import Programs

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


def _list_verb(name: str, kind: str, plural: str) -> Verb[[], Listing[Program]]:
    """The verb that lists the programs of one kind."""

    def listed(ledger: Ledger) -> Listing[Program]:
        from weft.programs import Programs

        return Listing(items=Programs(ledger).all(kind))

    listed.__name__, listed.__doc__ = f"{name}_list", f"List {plural}."
    return verb(f"{name} list")(listed)


def _show_verb(kind: str) -> Verb[[str], Program]:
    """The verb that shows one program of a kind."""

    def shown(ledger: Ledger, name: str) -> Program:
        from weft.programs import Programs

        return Programs(ledger).get(name, kind)

    details = arg("Its name; with NAME:VERSION an earlier configuration of it.", names=program(kind))
    shown.__annotations__["name"] = Annotated[str, details]
    shown.__name__ = f"{kind}_show"
    shown.__doc__ = f"Show a {kind}, or with NAME:VERSION an earlier configuration of it."
    return verb(f"{kind} show")(shown)


Draft = Annotated[bool, opt("Do not publish it yet.", "--draft")]
NewName = Annotated[str, arg("Its name.")]


def _given(**fields: Any) -> dict[str, Any]:
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

    config = fields_set(_given(providerType=kind, baseUrl=base_url, apiKey=_variable(key_env)), fields)
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

    changes = fields_set(_given(baseUrl=base_url, apiKey=_variable(key_env)), fields)
    programs = Programs(ledger)
    before = programs.get(name, "provider")
    changed = programs.change(before.id, changes, expected=expected, key=retry_key)
    dropped = tuple(field for field in before.config if field not in changed.config and field not in changes)
    return ConfiguredProvider(program=changed, dropped=dropped)


def _variable(name: str | None) -> str | None:
    return None if name is None else f"${{{name}}}"


provider_list = _list_verb("provider", "provider", "providers")
provider_show = _show_verb("provider")


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
        return _given(temperature=whole, maxTokens=self.max_tokens, topP=self.top_p)


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
    changes = fields_set({**_given(modelId=backend, provider=provider), **chosen}, fields)
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


model_list = _list_verb("model", "model", "models")
model_show = _show_verb("model")


# --- Code and information.

code_list = _list_verb("code", "code", "code programs")
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
