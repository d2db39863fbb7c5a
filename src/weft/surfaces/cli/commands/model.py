"""`weft model`: what is asked, and how."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.errors import Unsupported
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    F,
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    expecting,
    given,
    invoked,
    looking,
    message_text,
    named,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections
    from weft.runtime.inference.local_models import ModelFile, ModelFolder
    from weft.surfaces.wire.programs import FetchableModel

command = group("model", "Manage models: the provider's name of each, and its parameters.")
MAKE = "make one with `weft model create NAME --backend MODEL --provider PROVIDER`"


def parameters(function: F) -> F:
    for option in (
        click.option("--top-p", type=float, help="Nucleus sampling, 0 to 1."),
        click.option("--max-tokens", type=int, help="The longest answer."),
        click.option("--temperature", type=float, help="How freely it speaks, 0 to 2."),
    ):
        function = option(function)
    return function


def _parameters(temperature: float | None, max_tokens: int | None, top_p: float | None) -> dict[str, Any]:
    whole = int(temperature) if temperature is not None and temperature == int(temperature) else temperature
    return given(temperature=whole, maxTokens=max_tokens, topP=top_p)


@command.verb("create")
@click.argument("name")
@click.option("--backend", metavar="MODEL", required=True, help="The model's name at its provider.")
@click.option(
    "--provider", metavar="NAME", required=True, shell_complete=complete_programs("provider"), help="Its provider."
)
@parameters
@set_fields
@click.option("--draft", is_flag=True, help="Do not publish it yet.")
@acting
def create(
    call: Call,
    name: str,
    backend: str,
    provider: str,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a model."""
    config = {"modelId": backend, "provider": provider, **_parameters(temperature, max_tokens, top_p)}
    with changing(call, actor) as programs:
        answer(call, programs.create("model", name, with_fields(config, fields), draft=draft, key=retry_key))


@command.verb("configure")
@named("name", "model")
@click.option("--backend", metavar="MODEL", help="The model's name at its provider.")
@click.option("--provider", metavar="NAME", shell_complete=complete_programs("provider"), help="Its provider.")
@parameters
@click.option("--situation", metavar="NAME", help="Set the parameters for this situation alone.")
@set_fields
@expecting
@acting
def configure(
    call: Call,
    name: str,
    backend: str | None,
    provider: str | None,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    situation: str | None,
    fields: tuple[str, ...],
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a model's configuration, or its parameters in one situation."""
    asked = _parameters(temperature, max_tokens, top_p)
    if situation is not None and not asked:
        raise click.UsageError("--situation needs a parameter to set, such as --temperature")
    chosen = asked if situation is None else {"situations": {situation: asked}}
    changes = with_fields({**given(modelId=backend, provider=provider), **chosen}, fields)
    with changing(call, actor) as programs:
        model_program = programs.get(name, "model")
        answer(call, programs.change(model_program.id, changes, expected=expected, key=retry_key))


@command.verb("list")
def list_(call: Call) -> None:
    """List models."""
    with looking(call) as programs:
        show_list(call, programs.all("model"), "model", MAKE)


@command.verb("invoke")
@named("name", "model")
@click.option("--message", metavar="TEXT", help="What it is asked; - reads it from standard input.")
@click.option("--stream", is_flag=True, help="Show the answer as it comes.")
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@parameters
@as_actor
def invoke(
    call: Call,
    name: str,
    message: str | None,
    stream: bool,
    situation: str | None,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    actor: str,
) -> None:
    """Ask a model by itself, without anything that was said before; recorded in the session model:NAME."""
    from weft.runtime.inference.model_requests import Parameters
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        model_program = programs.get(name, "model")
    own = Parameters(**given(temperature=temperature, max_tokens=max_tokens, top_p=top_p))
    asked = Invocation(message=message_text(message), situation=situation, parameters=own)
    answer_invoked(call, invoked(call, actor, model_program.id, asked, stream=stream), shown=stream)


def complete_model_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from weft.runtime.inference.local_models import MODEL_FILES

    return [file.name for file in MODEL_FILES if file.name.startswith(incomplete)]


@command.verb("get")
@click.argument("name", required=False, shell_complete=complete_model_files)
@click.option(
    "--from", "source", metavar="FILE", type=click.Path(path_type=Path), help="Take it from a file, without a network."
)
@click.option("--list", "listed", is_flag=True, help="List the models that can be fetched.")
def get(call: Call, name: str | None, source: Path | None, listed: bool) -> None:
    """Fetch a small model, to be run on this machine.

    It is its maker's own file, checked against a pinned size and SHA-256. What was interrupted goes on where it stood.
    """
    from weft.runtime.inference.local_models import MODEL_FILES, known_model_file, model_folder

    folder = model_folder(os.environ.get)
    if listed or name is None:
        if name is not None or source is not None:
            raise click.UsageError("--list takes no other argument")
        if not listed:
            raise click.UsageError("say which model; `weft model get --list` names them")
        _list_model_files(call, [_fetchable(file, folder) for file in MODEL_FILES])
        return
    file = known_model_file(name)
    path = _brought(call, file, folder, source)
    size = f"{file.size_bytes / 1_000_000:,.0f} MB"
    call.answer(_fetchable(file, folder), [Span(file.name, "label"), f" is at {path} ({size}, its SHA-256 is right)"])
    call.note(f"`weft chat --model {shell_word(file.name)}` talks with it; `rm {shell_word(str(path))}` removes it")


def _list_model_files(call: Call, models: list[FetchableModel]) -> None:
    if call.json:
        call.documents(models)
        return
    for model in models:
        size = f"{model.size_bytes / 1_000_000:,.0f} MB".rjust(9)
        call.screen.show(
            Span(model.name.ljust(24), "label"), size, f"  {model.license}", "" if not model.path else "  here"
        )


def _fetchable(file: ModelFile, folder: ModelFolder) -> FetchableModel:
    from weft.surfaces.wire.programs import FetchableModel

    return FetchableModel(
        name=file.name,
        url=file.url,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        license=file.license,
        path=str(folder.place_of(file)) if folder.has(file) else None,
    )


def _brought(call: Call, file: ModelFile, folder: ModelFolder, source: Path | None) -> Path:
    """Where the model lies, after it was fetched or copied, if it was not there already."""
    import asyncio

    from weft.runtime.inference.local_models import fetch_model, is_whole, take_model
    from weft.surfaces.cli.progress import progress

    if is_whole(file, folder):
        return folder.place_of(file)
    with progress(call, file.name, in_bytes=True) as bar:
        if source is not None:
            return take_model(file, folder, source, bar.counted)

        async def fetched() -> Path:
            connections = _connections()
            try:
                return await fetch_model(file, folder, connections, bar.counted)
            finally:
                await connections.aclose()

        return asyncio.run(fetched())


def _connections() -> Connections:
    try:
        from weft.runtime.egress.connections import Connections
    except ImportError as error:
        raise Unsupported(
            f"fetching needs the package {error.name}", "install it with `pip install 'weft[providers]'`"
        ) from None
    return Connections()
