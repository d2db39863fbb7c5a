"""`weft context`: exactly what an agent saw, or would see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest, place_in_latest, require_named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.rendering.transcript import Transcript
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.ledger.api import Context, Ledger
    from weft.runtime.assembly.system_prompts import WorkspaceRules


@weft_command("context")
@arguments.rev(required=False)
@arguments.session_option("What the next turn of this session would see. Default: the latest.")
@arguments.original_option
def command(call: Call, rev: str | None, session: str | None, original: bool) -> None:
    """Show what an agent saw at a turn, or would see next.

    With REV: what the agent was given before it answered that turn. Without: what the session's next request would
    send before its own query, with the agent's prompt, cut where it does not fit the model.
    """
    if rev is not None and session is not None:
        raise click.UsageError("REV and --session exclude each other")
    with call.reading() as ledger:
        if rev is None and session is None:
            session = (require_named_or_latest if call.json else named_or_latest)(call, ledger, None, with_turn=False)
            if session is None:
                return
        place = None if rev is None else place_in_latest(call, ledger, rev)
        with progress(call, "context", by_itself=True):
            context = (ledger.originals() if original else ledger).context(place, session=session)
            if place is None:
                context = _as_sent(call, ledger, session or "main", context)
    if call.json:
        call.document(context)
    elif context.messages:
        call.screen.page(_lines(context, call.screen.columns))
    else:
        call.note("the context is empty: nothing has been said there yet")


def _as_sent(call: Call, ledger: Ledger, session: str, context: Context) -> Context:
    """A session's context as its next request would send it, with the model that is configured now."""
    from weft.runtime.assembly.configuration_layers import NO_OVERRIDES
    from weft.runtime.assembly.context_fitting import budget_of, next_request
    from weft.runtime.assembly.system_prompts import SystemPrompt
    from weft.runtime.inference.local_models import default_prompt
    from weft.surfaces.cli.configuration import read_configuration

    if not ledger.trust.is_trusted:  # nothing would be sent; its configuration may name variables
        return next_request(context, SystemPrompt(), None)
    opened = ledger.session(session)
    configuration = read_configuration(call, ledger, opened.id, NO_OVERRIDES)
    model = configuration.model
    prompt = SystemPrompt(
        text=configuration.system_prompt,
        default=None if model is None else default_prompt(model),
        persona=configuration.persona_name,
        rules=_rules(configuration.workspace),
    )
    budget = None if model is None else budget_of(model, configuration.effective.request_parameters)
    return next_request(context, prompt, budget, _counted(ledger, opened.head, context))


def _rules(workspace: str | None) -> WorkspaceRules | None:
    """Of the folder that a message from here would be sent from."""
    from weft.surfaces.cli.trust import trusted_rules, workspace_of

    folder = workspace_of(None) or workspace
    return None if folder is None else trusted_rules()(folder)


def _counted(ledger: Ledger, head: str | None, context: Context) -> int | None:
    """What the session's last request and its answer took, under the same compaction."""
    from weft.ledger.api import counted_tokens

    if head is None or ledger.turn(head).compaction_id != context.compaction:
        return None
    return counted_tokens(recorded.event for recorded in ledger.events(head))


def _lines(context: Context, columns: int) -> Iterator[Line]:
    counts = [counted(len(context.messages), "message")]
    if context.compaction is not None:
        counts.append(f"after compaction {short(context.compaction)}")
    if not context.cut.is_empty:
        counts.append("cut to fit")
    if context.observed:
        counts.append("as the model request recorded it")
    yield [Span(", ".join(counts), "dim")]
    yield []
    yield from Transcript(full=True, columns=columns).lines(context.messages)
