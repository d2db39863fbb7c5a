"""Turns looked at: `weft log`, `show`, `tree`, `context` and `diff`, and by their files `files`
and `blame`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.enums import CompactionTrigger, FileKind, MessageRole
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api import Provenance, ThreadDiff, Touch
from weft.ledger.arguments import path_error
from weft.ledger.model import Compaction, FileNote, Message, NewMessage, ToolCall, Turn
from weft.ledger.read.session_list import in_one_line, meaningful_title
from weft.surfaces.cli import arguments, turn_lists
from weft.surfaces.cli.arguments import as_wanted
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, SharedCommand
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import LEAST_ROOM, NO_DATE, NO_TIME, Line, Screen, Span, local_time
from weft.surfaces.cli.turn_lists import (
    ASCII,
    UNICODE,
    GraphGlyphs,
    GraphRow,
    Reader,
    crossing,
    decoration,
    downward,
    entry,
    flag,
    gutter,
    gutter_below,
    mark,
    named_or_latest,
    one_line,
    place_in_latest,
    require_named_or_latest,
    short,
    upward,
)
from weft.surfaces.cli.verb_commands import command_of, shows
from weft.surfaces.plain_text import cut, pad, safe, safe_lines, wrapped, wrapped_line
from weft.verbs import reading_verbs as verbs
from weft.verbs.answers import BlamedLine, ListedTurn, Listing, ShownTurn, UnfinishedTurn
from weft.verbs.declaration import opt

if TYPE_CHECKING:
    from weft.exchange.file_changes import FileBlame, TurnEdit
    from weft.ledger.api import Context, Ledger, PromptChange
    from weft.ledger.imports import ProvisionalTurn
    from weft.runtime.assembly.system_prompts import WorkspaceRules
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.inference.model_requests import ModelSettings, TokenCount
    from weft.runtime.resources.turn_files import TurnFiles
    from weft.verbs.answers import ShownTurn


# --- `weft log`: turns, the newest first.

_COUNT = re.compile(r"-\d+")


class LogCommand(SharedCommand):
    """`weft log -3` is `weft log -n 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = ("", *args)
        spelled = [f"-n{arg[1:]}" if _is_count(last, arg) else arg for last, arg in zip(before, args, strict=False)]
        return super().parse_args(ctx, spelled)


def _is_count(last: str, arg: str) -> bool:
    """Not where the argument is the value of an option."""
    return _COUNT.fullmatch(arg) is not None and last not in ("-n", "--limit", "--session", "--ledger", "--after")


@shows(verbs.log)
def show_log(
    call: Call,
    log: Listing[ListedTurn | UnfinishedTurn],
    ledger: Ledger,
    rev: str | None,
    session: str | None,
    limit: int | None,
    graph: Annotated[bool, opt("Draw the branches.", before="limit")] = False,
    oneline: Annotated[bool, opt("One line for each turn.", before="limit")] = False,
) -> None:
    reader, entries = Reader(ledger), iter(log.items)
    tails: list[ProvisionalTurn] = []
    first: ListedTurn | None = None
    for listed in entries:  # what is provisional stands first
        if isinstance(listed, ListedTurn):
            first = listed
            break
        tails.append(listed.turn)
    if first is None and not tails:
        call.note(_no_turns_words(rev, session, asked=limit != 0))
        call.next_page(log.next)
        return
    above = turn_lists.log_lines(tails, reader, call.screen.columns, oneline=oneline)
    drawing = _Drawing(reader, oneline, call.screen.columns, is_thread=rev is not None)
    rest = (listed for listed in entries if isinstance(listed, ListedTurn))
    turns = reader.recalled(chain([] if first is None else [first], rest))
    glyphs = UNICODE if call.screen.unicode else ASCII
    call.screen.page(chain(above, drawing.graph(list(turns), glyphs) if graph else drawing.plain(turns)))
    call.next_page(log.next)


def _no_turns_words(rev: str | None, session: str | None, *, asked: bool) -> str:
    if session is not None:
        return f"session {session!r} has made no turns here"
    if not asked or rev is not None:
        return "no turns asked for"
    return 'no turns yet: record one with `weft record --query "…" --response "…"`, or pipe JSON to `weft record`'


class _Drawing:
    """The turns of a log as lines."""

    def __init__(self, reader: Reader, oneline: bool, columns: int, *, is_thread: bool) -> None:
        self._reader, self._oneline, self._columns = reader, oneline, columns
        self._is_thread = is_thread

    def _turn_lines(self, turn: Turn, older: Turn | None, taken: int = 0) -> Iterator[Line]:
        room = self._columns - taken
        if self._oneline:
            yield one_line(turn, self._reader, room)
        else:
            yield from entry(turn, self._reader, room)
        if self._is_thread and older is not None and turn.parent_id is None:
            yield from () if self._oneline else ([],)
            yield crossing(older, self._reader, room)

    def plain(self, turns: Iterable[Turn]) -> Iterator[Line]:
        for i, (turn, older) in enumerate(_with_next(turns)):
            if i and not self._oneline:
                yield []
            yield from self._turn_lines(turn, older)

    def graph(self, turns: list[Turn], glyphs: GraphGlyphs) -> Iterator[Line]:
        turns_by_id = {turn.id: turn for turn in turns}
        older = {turn.id: following for turn, following in _with_next(turns)}
        for row in upward([(turn.id, turn.parent_id) for turn in turns]):
            if row.place is not GraphRow.TURN:
                yield [Span(gutter(row, glyphs), "line")]
                continue
            turn = turns_by_id[row.turn]
            beside, below = gutter(row, glyphs), gutter_below(row, glyphs)
            first, *further = self._turn_lines(turn, older[turn.id], len(below) + 1)
            yield [Span(beside, "line"), mark(turn, glyphs), " ", *first]
            yield from (
                [Span(f"{below} ", "line"), *line] if line else [Span(below.rstrip(), "line")] for line in further
            )
            if not self._oneline and row.goes_on:
                yield [Span(below, "line")]


def _with_next(turns: Iterable[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Each turn with the one that is shown after it."""
    last: Turn | None = None
    for turn in turns:
        if last is not None:
            yield last, turn
        last = turn
    if last is not None:
        yield last, None


log_command = command_of(verbs.log, LogCommand)


# --- `weft show`: one turn with everything in it.

RULES = 8
NAME_COLUMNS = 9


@shows(verbs.show)
def show_turn(
    call: Call,
    shown: ShownTurn | UnfinishedTurn,
    ledger: Ledger,
    full: Annotated[bool, opt("Show results, arguments and thinking in full.", before="original")] = False,
) -> None:
    from weft.surfaces.cli.transcript import Transcript

    if isinstance(shown, UnfinishedTurn):
        tails = ledger.imports.provisional(shown.turn.session_id)
        call.screen.page(list(turn_lists.provisional_page(tails, full=full))[1:])
        return
    turn, reader = shown.turn, Reader(ledger)
    folder = turn.workspace_path or ""
    header = _Header(shown, reader, ledger.listing().projects([folder])[folder])
    transcript = Transcript(
        full=full,
        columns=call.screen.columns,
        unicode=call.screen.unicode,
        workspace=turn.workspace_path,
        labels=reader.short_labels,
        wraps=call.screen.terminal,
    )
    files = noted_files(ledger, shown.items)
    below = turn_lists.provisional_page([tail.turn for tail in shown.provisional], full=full)
    call.screen.page([*header.lines(call.screen), *transcript.lines(shown.items, files), *below])


class _Header:
    """What stands above a turn's messages."""

    def __init__(self, shown: ShownTurn, reader: Reader, project: str) -> None:
        self._shown, self._turn, self._reader, self._project = shown, shown.turn, reader, project
        self._models = sorted({message.model for message in shown.messages if message.model})
        self._session = reader.session(shown.turn.session_id)

    def lines(self, screen: Screen) -> Iterator[Line]:
        turn, event = self._turn, self._shown.event
        yield [Span(f"turn {turn.id}", "id"), *decoration(self._reader.places(turn.id)), *flag(turn)]
        if event is not None:
            where = f"{event.id}, {event.kind}, {event.number} of {event.of}; the turn up to it"
            yield [Span("Event:   ", "dim"), where]
        for name, value in (*self._facts(), *merges(turn.id, self._shown.provenance)):
            if value:
                yield from _fact(name, Span(value), screen)
        if turn.error is not None:
            code = f"{turn.error_code}: " if turn.error_code not in (None, "error") else ""
            yield from _fact("Error", Span(code + turn.error, "bad"), screen)
        yield []
        if self._shown.compaction is not None:
            yield from _summary(self._shown.compaction, screen)

    def _facts(self) -> Iterator[tuple[str, str]]:
        turn, session = self._turn, self._session
        yield "Digest", turn.digest
        yield "Parent", turn.parent_id or "none: the root of its tree"
        yield "Session", f"{session.label if session else 'none'}, depth {turn.depth}"
        title = meaningful_title(session.title) if session else None
        yield "Title", title or ""
        yield "Task", in_one_line(session.task_description or "") if session and title is None else ""
        yield "Date", local_time(turn.started_at) if turn.time_known else NO_TIME
        yield "Agent", ", ".join(filter(None, (turn.persona_id, session.agent if session else None)))
        yield "For", " for ".join(self._shown.on_behalf_of or ())
        yield "Origin", " ".join(filter(None, (turn.origin, turn.version)))
        yield "Model", self._model()
        yield "Usage", _usage(turn)
        yield "Prompt", "; ".join(map(_prompt_words, self._shown.prompt_changes or ()))
        yield "Tools", "; ".join(turn_lists.withheld_of(turn))
        yield "Project", self._project if turn.origin else ""
        yield "Folder", turn.workspace_path or ""
        yield "Branch", turn.git_branch or ""
        yield "Allowed", permissions_text(turn.permissions_granted) if turn.origin else ""
        yield "Cut off", turn.interruption_reason or ""
        yield "Context", f"after compaction {short(turn.compaction_id)}" if turn.compaction_id else ""

    def _model(self) -> str:
        turn = self._turn
        named = " ".join(filter(None, (turn.model, (by := turn.provider_program or turn.provider) and f"({by})")))
        others = [model for model in self._models if model != turn.model]
        return ", ".join(filter(None, (named, *others)))


def merges(turn: str, merged: Sequence[Provenance]) -> Iterator[tuple[str, str]]:
    """Where a turn was picked or summed up from, and where it went."""
    for source in merged:
        left = f", which left at {short(source.left_id)}" if source.left_id else ""
        if source.turn_id == turn:
            picked = source.why == "cherry_pick"
            yield (
                "From",
                f"turn {short(source.source_id)}" if picked else f"the branch to {short(source.source_id)}{left}",
            )
        else:
            yield "Into", f"turn {short(source.turn_id)}{'' if source.why == 'cherry_pick' else ', as a summary'}"


def permissions_text(granted: Any) -> str:
    """What the agent was allowed, in a few words where the origin has them."""
    from weft.surfaces.cli.transcript import as_json

    if isinstance(granted, dict):
        words = [f"{name}{word}" for key, name in _MODES.items() if (word := _mode(granted.get(key)))]
        return ", ".join(words) or as_json(granted)
    if isinstance(granted, list) and all(isinstance(rule, dict) and "permission" in rule for rule in granted):
        rules = list(dict.fromkeys(f"{rule['permission']} {rule.get('action', '')}".strip() for rule in granted))
        return ", ".join([*rules[:RULES], *(["…"] if len(rules) > RULES else [])])
    return "" if granted is None else as_json(granted)


_MODES = {"mode": "", "approval_policy": "asks a person: ", "sandbox_policy": "sandbox: "}


def _mode(value: Any) -> str:
    word = value.get("type") or value.get("mode") if isinstance(value, dict) else value
    return word if isinstance(word, str) else ""


def noted_files(ledger: Ledger, items: Sequence[Message | ToolCall]) -> dict[str, list[FileNote]]:
    """The files of each message that no call of the turn tells of by itself."""
    from weft.surfaces.cli.transcript import as_json

    called_with = " ".join(as_json(item.arguments) for item in items if isinstance(item, ToolCall))
    notes = ledger.listing().files([item.id for item in items if isinstance(item, Message)])
    return {message: [file for file in files if file.path not in called_with] for message, files in notes.items()}


_USAGE = {
    "input": "input",
    "cached_input": "cache read",
    "cache_write": "cache write",
    "cache_write_1h": "of these for an hour",
    "output": "output",
    "reasoning": "of these reasoning",
    "total": "total",
}


def _usage(turn: Turn) -> str:
    """Parts of another part stand behind it."""
    counts = [(words, getattr(turn.usage, f"{name}_tokens")) for name, words in _USAGE.items()]
    return ", ".join(f"{words} {count:,}" for words, count in counts if count not in (UNSET, None))


def _prompt_words(change: PromptChange) -> str:
    """From where on a request was none that its cache knew."""
    if change.part == "message":
        return f"not that of the request before from message {change.message} of {change.of} on"
    words = {"model": "another model than the request before", "tools": "other tools than the request before"}
    return words.get(change.part, "another system prompt than the request before")


TRIGGERS: dict[str | None, str] = {
    CompactionTrigger.CONTEXT_LIMIT: "when the context was nearly full",
    CompactionTrigger.MANUAL: "by hand",
    CompactionTrigger.PERIODIC: "on schedule",
    CompactionTrigger.OVERFLOW_RECOVERY: "after the context was too long",
}


def _fact(name: str, value: Span, screen: Screen) -> Iterator[Line]:
    """A name and its value; on a terminal a long value goes on below its beginning."""
    room = max(LEAST_ROOM, screen.columns - NAME_COLUMNS)
    lines = wrapped_line(safe(value.text), room, breaks_words=False) if screen.terminal else [value.text]
    for number, line in enumerate(lines):
        lead = f"{name}:" if number == 0 else ""
        yield [Span(f"{lead:{NAME_COLUMNS}}", "dim"), Span(line, value.style)]


def _summary(compaction: Compaction, screen: Screen) -> Iterator[Line]:
    first_kept = f"; kept from {short(compaction.first_kept)} on" if compaction.first_kept else ""
    count = compaction.turns_summarized
    turns = "" if count is None else f" of {counted(count, 'turn')},"
    trigger = f"; made {TRIGGERS[compaction.trigger]}" if compaction.trigger in TRIGGERS else ""
    about = f"{turns} through {short(compaction.summarized_through)}{first_kept}{trigger}"
    yield [Span("summary", "warn"), about]
    if not compaction.summary:
        yield ["  ", Span("its text was not kept by the tool that made it", "dim")]
    lines = safe_lines(compaction.summary)
    shown = wrapped("\n".join(lines), max(LEAST_ROOM, screen.columns - 2)) if screen.terminal and lines else lines
    yield from (["  ", line] for line in shown)


# --- `weft tree`: a whole tree of turns, from its root.


@shows(verbs.tree)
def show_tree(call: Call, tree: Listing[ListedTurn], ledger: Ledger) -> None:
    reader, glyphs = Reader(ledger), UNICODE if call.screen.unicode else ASCII
    call.screen.page(_branch_lines(list(reader.recalled(tree.items)), reader, glyphs, call.screen.columns))


def _branch_lines(turns: list[Turn], reader: Reader, glyphs: GraphGlyphs, columns: int) -> Iterator[Line]:
    rows = {row.turn: row for row in downward([(turn.id, turn.parent_id) for turn in turns])}
    turns_by_id = {turn.id: turn for turn in turns}
    for turn in (turns_by_id[shown] for shown in rows):
        beside = gutter(rows[turn.id], glyphs)
        yield [Span(beside, "line"), mark(turn, glyphs), " ", *one_line(turn, reader, columns - len(beside) - 2)]


# --- `weft context`: exactly what an agent saw, or would see.


@weft_command("context")
@arguments.rev(required=False)
@arguments.session_option("What the next turn of this session would see. Default: the latest.")
@arguments.original_option
@click.option("--count", "is_counted", is_flag=True, help="Have the model's provider count the tokens.")
def context_command(call: Call, rev: str | None, session: str | None, original: bool, is_counted: bool) -> None:
    """Show what an agent saw at a turn, or would see next.

    With REV: what the agent was given before it answered that turn. Without: what the session's next request would
    send before its own query, with the agent's prompt, cut where it does not fit the model.

    Its tokens are estimated, unless --count sends it to the endpoint of the provider that counts. That costs nothing
    and asks no model. Where there is no such endpoint, or it fails, a line says so.
    """
    if rev is not None and session is not None:
        raise click.UsageError("REV and --session exclude each other")
    if rev is not None and is_counted:
        raise click.UsageError("--count is of what would be sent next, and REV of what was sent")
    with call.reading() as ledger:
        if rev is None and session is None:
            session = (require_named_or_latest if call.json else named_or_latest)(call, ledger, None, with_turn=False)
            if session is None:
                return
        place = None if rev is None else place_in_latest(call, ledger, rev)
        with progress(call, "context", by_itself=True):
            context = (ledger.originals() if original else ledger).context(place, session=session)
            size = None
            if place is None:
                context, size = _as_sent(call, ledger, session or "main", context, is_counted=is_counted)
    if size is not None and is_counted and size.counted_by is None:
        call.note(f"the tokens are estimated: {size.why}")
    if call.json:
        from weft.verbs.answers import ShownContext

        tokens, counted_by = (None, None) if size is None else (size.tokens, size.counted_by)
        call.document(ShownContext(context=context, tokens=tokens, counted_by=counted_by))
    elif context.messages:
        call.screen.page(_context_lines(context, size, call.screen.columns))
    else:
        call.note("the context is empty: nothing has been said there yet")


def _as_sent(
    call: Call, ledger: Ledger, session: str, context: Context, *, is_counted: bool
) -> tuple[Context, TokenCount]:
    """A session's context as its next request would send it, with the model that is configured now, and its size."""
    from weft.runtime.assembly.configuration_layers import NO_OVERRIDES
    from weft.runtime.assembly.context_fitting import budget_of, next_request
    from weft.runtime.assembly.system_prompts import SystemPrompt
    from weft.runtime.inference.local_models import default_prompt
    from weft.runtime.inference.model_requests import TokenCount
    from weft.surfaces.cli.programs.program_call import read_configuration

    if not ledger.trust.is_trusted:  # nothing would be sent; its configuration may name variables
        sent, tokens = next_request(context, SystemPrompt(), None)
        return sent, TokenCount(tokens=tokens, why="this ledger is not trusted")
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
    sent, tokens = next_request(context, prompt, budget, _counted_tokens(ledger, opened.head, context))
    estimate = TokenCount(tokens=tokens, why="no model is configured")
    if model is None or not is_counted:
        return sent, estimate
    count = _counted_by_provider(model, configuration, sent)
    return sent, count if count.counted_by is not None else replace(estimate, why=count.why)


def _counted_by_provider(model: ModelSettings, configuration: TurnConfiguration, sent: Context) -> TokenCount:
    """Behind the last answer stands a word to be answered: servers count no request that asks nothing."""
    import asyncio

    from weft.runtime.inference.inference import Inference
    from weft.runtime.inference.model_requests import InferenceRequest

    messages: list[Message | NewMessage] = list(sent.messages)
    if not messages or messages[-1].role not in (MessageRole.USER, MessageRole.TOOL):
        messages.append(NewMessage(role=MessageRole.USER, content="Go on"))
    request = InferenceRequest(model=model, messages=messages, parameters=configuration.effective.request_parameters)

    async def count() -> TokenCount:
        async with Inference() as inference:
            return await inference.count(request, context=configuration.context)

    return asyncio.run(count())


def _rules(workspace: str | None) -> WorkspaceRules | None:
    """Of the folder that a message from here would be sent from."""
    from weft.surfaces.cli.trust import workspace_of
    from weft.surfaces.cli.work.sandbox_access import trusted_rules

    folder = workspace_of(None) or workspace
    return None if folder is None else trusted_rules()(folder)


def _counted_tokens(ledger: Ledger, head: str | None, context: Context) -> int | None:
    """What the session's last request and its answer took, under the same compaction."""
    from weft.ledger.api import counted_tokens

    if head is None or ledger.turn(head).compaction_id != context.compaction:
        return None
    return counted_tokens(recorded.event for recorded in ledger.events(head))


def _context_lines(context: Context, size: TokenCount | None, columns: int) -> Iterator[Line]:
    from weft.surfaces.cli.transcript import Transcript

    counts = [counted(len(context.messages), "message")]
    if context.compaction is not None:
        counts.append(f"after compaction {short(context.compaction)}")
    if not context.cut.is_empty:
        counts.append("cut to fit")
    if context.observed:
        counts.append("as the model request recorded it")
    if size is not None:
        by = "estimated" if size.counted_by is None else f"counted by {safe(size.counted_by)}"
        counts.append(f"{size.tokens:,} tokens ({by})")
    yield [Span(", ".join(counts), "dim")]
    yield []
    yield from Transcript(full=True, columns=columns).lines(context.messages)


# --- `weft diff`: two threads from where they part.


@weft_command("diff")
@arguments.rev("left", required=False)
@arguments.rev("right", required=False)
@click.option("-p", "--patch", is_flag=True, help="What was said and done in the turns, not only their first lines.")
@click.option("--files", is_flag=True, help="Compare the files of the two turns, not what was said.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if they differ.")
def diff_command(call: Call, left: str | None, right: str | None, patch: bool, files: bool, exit_code: bool) -> int:
    """Show where two threads diverge, or how their files differ.

    Turns that only LEFT has are marked with -, turns that only RIGHT has with +. Without RIGHT it is the latest
    session. With --files: A added, D deleted, M modified, P another mode, T another type; with -p the lines, too.
    With --files alone: what the latest turn of the latest session changed.

    In a folder that is trusted for work (docs/permissions.md#folders-that-are-trusted-for-work) --files also tells what
    of git's (HEAD, branches, tags, the index) is not what it was before that turn.
    """
    if left is None and not files:
        raise click.UsageError("the argument LEFT is missing; --files alone compares the latest turn")
    with call.reading() as ledger:
        other = require_named_or_latest(call, ledger, right)
        if left is None:
            return _show_changed_files(call, ledger, other, patch=patch, exit_code=exit_code)
        left = place_in_latest(call, ledger, left)
        if right is None and ledger.point(left) == ledger.point(other):
            raise click.UsageError(f"{left} is the latest session itself: name another one to compare it with")
        if files:
            return _compare_files(call, ledger, left, other, patch=patch, exit_code=exit_code)
        difference = ledger.diff(left, other)
        if call.json:
            call.document(difference)
        else:
            comparison = _Comparison(ledger, patch, call.screen.columns, call.screen.unicode)
            call.screen.page(comparison.lines(left, other, difference))
    return DIFFERENT if exit_code and (difference.left or difference.right) else OK


def _show_changed_files(call: Call, ledger: Ledger, session: str, *, patch: bool, exit_code: bool) -> int:
    """What the last turn of a session changed, in all directories that it worked in."""
    from weft.surfaces.cli.turn_files import git_changes_since, ignored_self_running, turn_files

    turn = ledger.turn(session)
    call.note("its latest turn: ", Span(short(turn.id), "id"))
    files = turn_files(ledger)
    if _only_read(ledger, turn):
        return _show_changes(call, files, (turn.parent_id, turn.id), [], (), patch=patch, exit_code=exit_code)
    files.snapshot_of(turn.id)  # or nothing is known of its files
    changes = files.changes_of_turn(turn.id)
    git_changes = git_changes_since(call, files, [turn.id])
    ids, places = (turn.parent_id, turn.id), files.places_of_turn(turn.id)
    running = ignored_self_running(files, [turn.id])
    return _show_changes(call, files, ids, changes, places, git_changes, running, patch=patch, exit_code=exit_code)


def _only_read(ledger: Ledger, turn: Turn) -> bool:
    """Whether a turn that a broker ran called nothing that could change files."""
    from weft.runtime.tool.toolsets import CODE, READING

    is_brokers = turn.effective_config is not None and turn.origin is None
    names = [call.name for call in ledger.tool_calls(turn.id)]
    return is_brokers and all(name in READING or name.startswith(f"{CODE}/") for name in names)


def _compare_files(call: Call, ledger: Ledger, left: str, right: str, *, patch: bool, exit_code: bool) -> int:
    from weft.surfaces.cli.turn_files import turn_files

    files = turn_files(ledger)
    snapshots = files.snapshot_of(left), files.snapshot_of(right)
    changes, places = files.changes(*snapshots), files.places_of(*snapshots)
    ids = (ledger.resolve(left), ledger.resolve(right))
    return _show_changes(call, files, ids, changes, places, patch=patch, exit_code=exit_code)


def _show_changes(
    call: Call,
    files: TurnFiles,
    ids: tuple[str | None, str],
    changed_paths: Sequence[ChangedPath],
    places: Sequence[str],
    git_changes: Sequence[str] = (),
    ignored_running: Mapping[str, str] = MappingProxyType({}),
    *,
    patch: bool,
    exit_code: bool,
) -> int:
    """The paths that differ between the files of two turns of these ids; the first is None where no turn was before.
    `ignored_running`: what else was changed and runs by itself, each with what runs it."""
    from weft.surfaces.cli.turn_files import (
        change_lines,
        file_change,
        note_git_changes,
        note_self_running,
    )
    from weft.surfaces.cli.work.sandbox_access import self_running_changes
    from weft.verbs.exchange_answers import FilesDiff

    changes = [file_change(path, files.text_diff(path) if patch else None) for path in changed_paths]
    running = {**self_running_changes(changed_paths, places), **ignored_running}
    left_id, right_id = ids
    if call.json:
        call.document(
            FilesDiff(
                left_id=left_id,
                right_id=right_id,
                changes=changes,
                runs_by_itself=running,
                git_changes=list(git_changes),
            )
        )
    else:
        call.screen.page(change_lines(changes))
        note_self_running(call, running)
        note_git_changes(call, git_changes)
    if not changes:
        call.note("their files are equal")
    return DIFFERENT if exit_code and (changes or git_changes) else OK


class _Comparison:
    """The lines of a difference."""

    def __init__(self, ledger: Ledger, patch: bool, columns: int, unicode: bool) -> None:
        self._ledger, self._patch, self._columns, self._unicode = ledger, patch, columns, unicode
        self._reader = Reader(ledger)

    def lines(self, left: str, right: str, difference: ThreadDiff) -> Iterator[Line]:
        yield [Span(f"--- {left} ({counted(len(difference.left), 'turn')} of its own)", "heading")]
        yield [Span(f"+++ {right} ({counted(len(difference.right), 'turn')} of its own)", "heading")]
        if difference.ancestor is None:
            yield [Span("the threads share no turn", "dim")]
        else:
            yield ["  ", *one_line(self._ledger.turn(difference.ancestor), self._reader, self._columns - 2)]
        yield from self._side_lines("- ", "bad", difference.left)
        yield from self._side_lines("+ ", "good", difference.right)

    def _side_lines(self, sign: str, style: str, turns: Sequence[Turn]) -> Iterator[Line]:
        from weft.surfaces.cli.transcript import Transcript

        for turn in self._reader.ahead(turns):
            yield [Span(sign, style), *one_line(turn, self._reader, self._columns - 2)]
            if self._patch:
                transcript = Transcript(
                    full=True, columns=self._columns, unicode=self._unicode, workspace=turn.workspace_path
                )
                for line in transcript.lines(verbs.in_order(self._ledger, turn.id)):
                    yield [Span(sign, style), "  ", *line]


# --- `weft files`: every turn that touched a file.

HEADER = ("turn", "when", "kind", "lines", "session", "file")
SPARE = ("session",)
STYLES = {"written": "good", "read": "", "referenced": "dim", "attached": "dim"}


@weft_command("files")
@click.argument("path")
@click.option("--kind", type=click.Choice([kind.value for kind in FileKind]), help="Only notes of this kind.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N notes.")
def files_command(call: Call, path: str, kind: str | None, limit: int | None) -> None:
    """List the turns that read or wrote a file.

    The newest first. PATH is a whole path, or the end of one: `parser.py` and `src/parser.py` are found in every
    checkout, `./src/parser.py` in this folder alone.
    """
    with call.reading() as ledger:
        touches = [touch for touch in ledger.files(as_wanted(path)) if kind in (None, touch.kind)]
        shown = touches[:limit]
        if call.json:
            call.documents(shown)
            return
        reader = Reader(ledger)
        if shown:
            call.screen.table([_touch_row(touch, reader) for touch in shown], HEADER, spare=SPARE)
    if not touches:
        call.note(f"no turn is known to have touched {path}; `weft import` notes the files of other tools' sessions")
    elif len(shown) < len(touches):
        call.note(f"{len(touches) - len(shown):,} more: -n N lists more")


def _touch_row(touch: Touch, reader: Reader) -> tuple[Span | str, ...]:
    session = reader.session(touch.session_id)
    lines = "" if touch.line_start is None else f"{touch.line_start}-{touch.line_end or ''}".rstrip("-")
    return (
        Span(short(touch.turn_id), "id"),
        local_time(touch.touched_at) if touch.time_known else NO_DATE,
        Span(touch.kind, STYLES.get(touch.kind, "")),
        lines,
        Span(reader.short_label(session) if session else "", "label"),
        touch.full_path,
    )


# --- `weft blame`: which turn last wrote each line of a file.

NOT_KNOWN = "?"
LABEL_COLUMNS = 16
DAY = len("2026-11-15")


@weft_command("blame")
@click.argument("path")
@click.option("--recorded", is_flag=True, help="What the recorded edits leave, not what the file holds now.")
def blame_command(call: Call, path: str, recorded: bool) -> None:
    """Show which turn last wrote each line of a file.

    The lines are those of the file as it is now; where it is not here, those that the recorded edits leave. A line
    that nobody is known to have written, because it is older or was changed by other means, is marked with `?`.

    Edits are taken back one by one, the newest first; edits that are not found any more are named.
    """
    from weft.exchange.file_changes import blame_file

    wanted = as_wanted(path)
    text = None if recorded else _text_of_file(Path(os.path.expanduser(path)))
    with call.reading() as ledger:
        blamed = blame_file(ledger, wanted, text)
        if blamed is None:
            raise NotFound(
                "recorded text of",
                path,
                "check the path: the file is not here, and its recorded edits do not give its whole text",
            )
        if call.json:
            call.documents(_line_form(number, line, edit) for number, line, edit in _numbered_lines(blamed))
        else:
            call.screen.page(_blame_lines(blamed, Reader(ledger)))
    _notes(call, path, blamed)


def _text_of_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise path_error(path, error) from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text", "blame works on lines of text") from None


def _numbered_lines(blamed: FileBlame) -> Iterator[tuple[int, str, TurnEdit | None]]:
    for number, (line, edit) in enumerate(zip(blamed.lines, blamed.blame.lines, strict=True), 1):
        yield number, line, edit


def _line_form(number: int, line: str, edit: TurnEdit | None) -> BlamedLine:
    if edit is None:
        return BlamedLine(line=number, text=line)
    turn = edit.turn
    return BlamedLine(
        line=number,
        text=line,
        turn_id=turn.id,
        call_id=edit.call.id,
        session_id=turn.session_id,
        started_at=turn.started_at,
        time_known=turn.time_known,
        model=turn.model,
    )


def _blame_lines(blamed: FileBlame, reader: Reader) -> Iterator[Line]:
    labels = {edit.turn.id: _label(edit, reader) for edit in blamed.blame.lines if edit is not None}
    wide = max((len(label) for label in labels.values()), default=0)
    digits = len(str(len(blamed.lines)))
    for number, line, edit in _numbered_lines(blamed):
        if edit is None:
            who: Line = [pad(NOT_KNOWN, 8 + 2 + wide + 2 + DAY)]
        else:
            day = local_time(edit.turn.started_at)[:DAY] if edit.turn.time_known else pad(NO_DATE, DAY)
            who = [Span(short(edit.turn.id), "id"), "  ", Span(pad(labels[edit.turn.id], wide), "label"), "  ", day]
        yield [*who, Span(f"  {number:>{digits}}  ", "dim"), line.expandtabs(4)]


def _label(edit: TurnEdit, reader: Reader) -> str:
    session = reader.session(edit.turn.session_id)
    return cut(safe(reader.short_label(session)), LABEL_COLUMNS) if session else ""


def _notes(call: Call, path: str, blamed: FileBlame) -> None:
    unknown = sum(edit is None for edit in blamed.blame.lines)
    if unknown:
        call.note(
            f"{counted(unknown, 'line')} of {path}: no turn is known to have written {'it' if unknown == 1 else 'them'}"
        )
    turns = dict.fromkeys(short(edit.turn.id) for edit in blamed.blame.unplaced)
    if turns:
        call.note(f"edits of {', '.join(turns)} are not found any more: something that is not recorded came after")
