"""Offers the models of servers that run on this machine, and makes programs of the one that is chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from weft.kernel.typed_names import shell_word
from weft.programs import Program, Programs
from weft.programs.program_records import name_from
from weft.store.port import Diagnosis, good
from weft.surfaces.cli.chat.readiness import has
from weft.surfaces.cli.chat.typed_input import free_label
from weft.surfaces.cli.programs.program_call import line_of
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.runtime.inference.plain_requests import RunningServer
    from weft.surfaces.cli.command_line import Call

NAMED_MODELS = 4
"""So many models of a server stand in a hint."""


class ServedModel(Struct, frozen=True):
    """A model of a server that runs here."""

    server: RunningServer
    model: str


async def running_servers() -> list[RunningServer]:
    """The servers that run here. None where the package that opens connections is missing."""
    from weft.runtime.inference import plain_requests as usual

    listening = usual.listening_servers(usual.USUAL_SERVERS)
    if not listening or not has("httpx2"):
        return []
    from weft.runtime.egress.connections import Connections

    connections = Connections()
    try:
        return await usual.find_running_servers(connections, listening)
    finally:
        await connections.aclose()


def offer(call: Call, servers: Sequence[RunningServer]) -> ServedModel | None:
    """Let the person choose a model; None: the embedded one."""
    models = [ServedModel(server, model) for server in servers for model in server.models]
    if not models:
        return None
    call.screen.show("Model servers run on this machine:")
    for line in _choice_lines(models):
        call.screen.show(*line)
    while True:
        typed = click.prompt(
            "Which model answers? Its number, or Enter for the embedded one", default="", show_default=False
        ).strip()
        if not typed:
            return None
        if typed.isascii() and typed.isdigit() and 0 < int(typed) <= len(models):
            return models[int(typed) - 1]
        call.screen.show(Span(f"there is no {safe(typed)[:20]}: 1 to {len(models)}", "warn"))


def _choice_lines(models: Sequence[ServedModel]) -> Iterator[Line]:
    width = max(len(model.model) for model in models)
    for number, model in enumerate(models, 1):
        where = f"{model.server.server.title} at {model.server.address}"
        yield [f"{number:>4}  ", Span(safe(model.model).ljust(width), "label"), Span(f"  {where}", "dim")]


def hints(servers: Sequence[RunningServer]) -> Iterator[str]:
    """What somebody who is not at a terminal is told of the servers that run here."""
    for running in servers:
        command = f"weft provider create {running.server.name} --type openai-compatible --base-url {running.url}"
        yield f"{_server_line(running)}; `{command}` makes it a provider"


def examine_servers() -> Iterator[Diagnosis]:
    """What `weft doctor` says of the servers that run here."""
    for running in asyncio.run(running_servers()):
        yield good("talking", f"{_server_line(running)}; `weft chat` offers them")


def _server_line(running: RunningServer) -> str:
    names = ", ".join(map(safe, running.models[:NAMED_MODELS]))
    more = "…" if len(running.models) > NAMED_MODELS else ""
    return f"{running.server.title} runs at {running.address}: {names}{more}"


def make_programs(call: Call, programs: Programs, chosen: ServedModel) -> Program:
    """The model program of a served model, with its provider; what is there already is used."""
    provider = _provider_of(programs, chosen) or _made(
        call,
        programs,
        "provider",
        chosen.server.server.name,
        {"providerType": "openai-compatible", "baseUrl": chosen.server.url},
    )
    return _model_of(programs, chosen, provider) or _made(
        call,
        programs,
        "model",
        name_from(chosen.model.removesuffix(":latest"), provider.name),
        {"modelId": chosen.model, "provider": provider.name},
    )


def _provider_of(programs: Programs, chosen: ServedModel) -> Program | None:
    wanted = {"providerType": "openai-compatible", "baseUrl": chosen.server.url}
    return next((provider for provider in _in_use(programs, "provider") if provider.config == wanted), None)


def _model_of(programs: Programs, chosen: ServedModel, provider: Program) -> Program | None:
    own = (provider.name, f"@({provider.name})", provider.id, f"@({provider.id})")
    for model in _in_use(programs, "model"):
        if model.config.get("modelId") == chosen.model and model.config.get("provider") in own:
            return model
    return None


def _in_use(programs: Programs, kind: str) -> list[Program]:
    """Those that were made or taken over here, and are no drafts."""
    return [
        program
        for program in programs.all(kind)
        if program.state != "draft" and not program.foreign and isinstance(program.config, dict)
    ]


def _made(call: Call, programs: Programs, kind: str, name: str, config: dict[str, Any]) -> Program:
    program = programs.create(kind, free_label(name, [other.name for other in programs.all()]), config)
    undo = f"`weft program delete {shell_word(program.name)}` takes it back"
    call.screen.show(*line_of(program), Span(f"; {undo}", "dim"))
    return program
