"""Runs of SWE-agent and mini-swe-agent: one JSON document a run.

SWE-agent's `.traj` holds one task, then responses and actions until it ends. The `.traj.json` of
mini-swe-agent holds the messages of a run as they went to the model, with every response in full.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import BOM, read_document, read_whole, report_damage
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical,
    fingerprint,
    json_in_text,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import (
    PendingCall,
    chat_tokens,
    content_of,
    content_text,
    finished_items,
    identity,
)
from weft.exchange.importers.port import (
    Item,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Place,
    Report,
    Source,
    Tokens,
    Transcript,
)
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.dialects import plain_result
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart

# --- What runs of SWE-agent and mini-swe-agent share: records of a document, items in order, files, and two accounts
# joined.

KNOWN_SECTIONS = frozenset({"info", "environment", "replay_config", "instance_id", "trajectory_format"})
"""Sections that tell of the run as a whole."""
LISTS = frozenset({"trajectory", "history", "messages", "attempts"})


def count_record(report: Report, kind: str, *, is_mapped: bool, is_unknown: bool = False) -> None:
    """One record found."""
    report.found += 1
    (report.mapped if is_mapped else report.kept)[kind] += 1
    if is_unknown:
        report.unknown[kind] += 1


def count_sections(report: Report, document: dict[str, Any]) -> None:
    for name in document:
        if name not in LISTS:
            count_record(report, name, is_mapped=name in KNOWN_SECTIONS, is_unknown=name not in KNOWN_SECTIONS)


def checked_objects(values: Iterable[Any], kind: str, report: Report) -> list[dict[str, Any]]:
    """Those that are objects; anything else is a damaged record."""
    json_objects = []
    for number, value in enumerate(values):
        if isinstance(value, dict):
            json_objects.append(value)
        else:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"{kind} {number} is a JSON {type(value).__name__}, not an object")
    return json_objects


TIMED_OUT = ("EXECUTION TIMED OUT", "timed out and has been killed", "was cancelled because it took more than")
"""How a tool's words tell that a command took too long."""


def answer_call(call: PendingCall, result: Any) -> None:
    words = result if isinstance(result, str) else ""
    is_late = any(sign in words[:400] or sign in words[-400:] for sign in TIMED_OUT)
    call.answer(result, ToolCallStatus.TIMEOUT if is_late else ToolCallStatus.OK)


class RunItems(Struct):
    """The items of a run so far."""

    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    last_calls: list[PendingCall] = field(default_factory=list)
    """Calls of the last response."""

    def add_response(self, message: NativeMessage, calls: Iterable[PendingCall] = ()) -> None:
        self.items.append(message)
        self.last_calls = list(calls)
        self.items += self.last_calls

    def waiting_call(self, ids: Iterable[Any] = ()) -> PendingCall | None:
        """The call that an outcome belongs to: the one it names, else the first that has none."""
        candidates = [call for call in self.last_calls if call.id in set(ids)] if ids else self.last_calls
        return next((call for call in candidates if call.is_open), None)

    def finished(self) -> list[Item]:
        return list(finished_items(self.items))


def with_files(items: list[Item], files: tuple[FileNote, ...]) -> list[Item]:
    """Files that the run as a whole changed, told with its last response."""
    for number in range(len(items) - 1, -1, -1):
        item = items[number]
        if isinstance(item, NativeMessage) and item.role == "assistant":
            items[number] = replace(item, files=(*item.files, *files))
            break
    return items


EDITED = re.compile(r"edit\s+(\d{1,9}):(\d{1,9})")
PATCHED = re.compile(r'^(?:(\+\+\+ "?b/)|rename to )(.+)$', re.MULTILINE)
NOT_OPEN = frozenset({"", "n/a"})


def patched_files(submission: Any) -> tuple[FileNote, ...]:
    """Those that a patch in git's form leaves changed."""
    words = submission if isinstance(submission, str) else ""
    paths = dict.fromkeys(_path(line_end, is_quoted=bool(added)) for added, line_end in PATCHED.findall(words))
    return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in paths)


def _path(line_end: str, is_quoted: bool) -> str:
    """What is named at the end of a line; at least one letter of it."""
    path = line_end.rstrip()
    return (path.removesuffix('"') if is_quoted else path) or line_end[0]


def command_files(action: Any, state: dict[str, Any]) -> tuple[FileNote, ...]:
    """Of a command line: `open PATH [LINE]`, `create PATH`, `edit A:B` of the open file, `str_replace_editor`."""
    words = _words(action)
    if len(words) < 2:
        return ()
    name, path = words[0], words[1]
    if name == "open":
        line = int(words[2]) if len(words) > 2 and words[2].isdecimal() and len(words[2]) < 10 else None
        return (FileNote(kind=FileKind.READ, path=path, line_start=line),)
    if name == "create":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    if name in ("edit", "insert"):
        return _edited(str(action), state)
    if name == "str_replace_editor" and len(words) > 2:
        return edited_files(path, words[2], None)
    return ()


def _words(action: Any) -> list[str]:
    line = action.strip().split("\n", 1)[0][:2000] if isinstance(action, str) else ""
    try:
        return shlex.split(line)
    except ValueError:  # a quotation that goes on in the next line
        return line.split()


def _edited(action: str, state: dict[str, Any]) -> tuple[FileNote, ...]:
    path = text(state.get("open_file")) or ""
    if path in NOT_OPEN:
        return ()
    lines = EDITED.match(action.strip())
    start, end = (int(lines[1]), int(lines[2])) if lines else (None, None)
    return (FileNote(kind=FileKind.WRITTEN, path=path, line_start=start, line_end=end),)


def call_files(name: str, arguments: Any, state: dict[str, Any]) -> tuple[FileNote, ...]:
    """Of a call with named arguments."""
    fields = mapping(arguments)
    path = text(fields.get("path")) or text(fields.get("filename")) or text(fields.get("file_path"))
    if name == "edit":
        return _edited("", state)
    if path is None:
        return ()
    if name == "open":
        return (FileNote(kind=FileKind.READ, path=path, line_start=whole_number(fields.get("line_number"))),)
    if name == "create":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return (
        edited_files(str(fields.get("command")), path, fields.get("view_range"))
        if name.startswith("str_replace")
        else ()
    )


def edited_files(command: str, path: str, view_range: Any) -> tuple[FileNote, ...]:
    """The editor that Anthropic defined: `view` reads, everything else writes."""
    if command == "view":
        lines = [number for value in sequence(view_range) if (number := whole_number(value)) is not None and number > 0]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end),)
    if command in ("create", "str_replace", "insert", "undo_edit"):
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return ()


class Pair(Struct, frozen=True):
    """A response and its step; one of them may be missing."""

    message: int | None
    step: int | None


def align_responses(responses: list[tuple[int, JsonObject]], steps: list[JsonObject]) -> list[Pair]:
    """Responses with their places in the history, in order, against the steps, in order."""
    pairs: list[Pair] = []
    later_steps, later_responses = (
        _places(steps, "response"),
        _places([response for _, response in responses], "content"),
    )
    response_number = step_number = 0
    while response_number < len(responses) and step_number < len(steps):
        place, message = responses[response_number]
        if _same(message, steps[step_number]):
            pairs.append(Pair(place, step_number))
            response_number, step_number = response_number + 1, step_number + 1
        elif _comes(later_steps, message.get("content"), after=step_number):
            pairs.append(Pair(None, step_number))
            step_number += 1
        elif _comes(later_responses, steps[step_number].get("response"), after=response_number):
            pairs.append(Pair(place, None))
            response_number += 1
        else:  # edited on one side: nothing else can stand for either
            pairs.append(Pair(place, step_number))
            response_number, step_number = response_number + 1, step_number + 1
    pairs += [Pair(place, None) for place, _ in responses[response_number:]]
    pairs += [Pair(None, number) for number in range(step_number, len(steps))]
    return pairs


def _same(message: JsonObject, step: JsonObject) -> bool:
    content, done = message.get("content"), step.get("response")
    if isinstance(content, str) and content and content == done:
        return True
    action = message.get("action")
    return isinstance(action, str) and bool(action.strip()) and action == step.get("action")


def _places(records: list[JsonObject], name: str) -> dict[str, int]:
    """The last place of each text."""
    return {value: number for number, record in enumerate(records) if isinstance(value := record.get(name), str)}


def _comes(places: dict[str, int], words: Any, after: int) -> bool:
    return isinstance(words, str) and bool(words) and places.get(words, -1) > after


# --- SWE-agent's `.traj`: one document a run, one task, then responses and actions until it ends.

TRAJECTORY_ROLES = frozenset({"system", "user", "assistant", "tool"})
TRAJECTORY_SETTINGS = ("name", "temperature", "top_p", "per_instance_cost_limit", "total_cost_limit")
METADATA_FIELDS = (
    "exit_status",
    "model_stats",
    "swe_agent_hash",
    "swe_rex_version",
    "swe_rex_hash",
    "submission",
    "score",
)


class Run(Struct, frozen=True):
    """One attempt at a task."""

    history: list[JsonObject]
    steps: list[JsonObject]
    info: JsonObject
    config: JsonObject

    @property
    def model(self) -> str | None:
        return text(mapping(mapping(self.config.get("agent")).get("model")).get("name"))


def run_of(document: JsonObject, report: Report) -> Run:
    return Run(
        history=checked_objects(sequence(document.get("history")), "history", report),
        steps=checked_objects(sequence(document.get("trajectory")), "step", report),
        info=mapping(document.get("info")),
        config=config_of(document.get("replay_config")),
    )


def config_of(value: Any) -> JsonObject:
    """The settings of a run: an object, or JSON in a text."""
    return mapping(read_document(value.encode("utf-8", "surrogatepass")).value if isinstance(value, str) else value)


def beginning(document: JsonObject) -> list[Any]:
    """What tells a run from others of the same task in folders of the same name: all up to its first response."""
    first = next(iter(sequence(document.get("attempts"))), None)
    run = mapping(first) or document
    values: list[Any] = []
    for message in map(mapping, sequence(run.get("history"))):
        if not message.get("is_demo"):
            values.append([message.get("role"), message.get("content"), message.get("tool_calls")])
            if message.get("role") == "assistant":
                break
    steps = [mapping(value) for value in sequence(run.get("trajectory"))[:1]]
    return [values, [[step.get("response"), step.get("action")] for step in steps]]


def read_runs(document: JsonObject, key: str, size: int, report: Report) -> Iterator[NativeTurn]:
    """Every attempt as a turn of its own; where there were several, the one that was chosen comes last."""
    count_sections(report, document)
    attempts = checked_objects(sequence(document.get("attempts")), "attempt", report)
    if not attempts:
        run = run_of(document, report)
        if run.history or run.steps:
            yield _Run(run, report).native_turn(key, size)
        return
    for kind in ("history", "trajectory"):
        for _ in sequence(document.get(kind)):
            count_record(report, f"{kind}.repeated", is_mapped=False)
    chosen = whole_number(mapping(document.get("info")).get("best_attempt_idx"))
    numbers = sorted(range(len(attempts)), key=lambda number: number == chosen)
    for place, number in enumerate(numbers):
        count_sections(report, attempts[number])
        end = max(size - len(numbers) + 1 + place, 0)  # the session stands on the one that reaches furthest
        yield _Run(run_of(attempts[number], report), report).native_turn(f"{key}#{number}", end)


class _Run:
    """Makes the turn of one run."""

    def __init__(self, run: Run, report: Report) -> None:
        self._run, self._report = run, report
        self._run_items = RunItems()
        self._position = 0
        self._has_answered = False
        self._observation: Any = UNSET  # what the last step says came of its action, if no message does
        self._agent = next(
            (agent for message in run.history if (agent := text(message.get("agent"))) is not None), None
        )

    def native_turn(self, key: str, size: int) -> NativeTurn:
        run, info = self._run, self._run.info
        items = with_files(self._items(), patched_files(info.get("submission")))
        status = text(info.get("exit_status"))
        states = [state for step in run.steps if (state := _state(step))]
        problem, repository = (mapping(run.config.get(name)) for name in ("problem_statement", "env"))
        return NativeTurn(
            key=key,
            records=identity(items) or (canonical([key]),),
            items=tuple(items),
            closed=status is not None,
            error=status if status is not None and not status.startswith("submitted") else None,
            workspace=next((path for state in states if (path := text(state.get("working_dir"))) is not None), None),
            version=text(info.get("swe_agent_version")),
            config={"model": settings} if (settings := self._settings()) else None,
            metadata=present(
                **{name: info.get(name) for name in METADATA_FIELDS},
                problem=text(problem.get("id")),
                repository=_public_fields(mapping(repository.get("repo"))),
            ),
            end=size,
        )

    def _settings(self) -> dict[str, Any] | None:
        """The model's, chosen by name: keys lie beside them."""
        fields = mapping(mapping(self._run.config.get("agent")).get("model"))
        return present(**{name: fields.get(name) for name in TRAJECTORY_SETTINGS})

    def _items(self) -> list[Item]:
        history = self._run.history
        responses = [
            (number, message)
            for number, message in enumerate(history)
            if message.get("role") == "assistant" and not message.get("is_demo")
        ]
        for pair in align_responses(responses, self._run.steps):
            self._add_messages_until(
                _next_response_place(responses, self._position, len(history)) if pair.message is None else pair.message
            )
            if pair.message is not None:
                self._position = pair.message + 1
            self._respond(pair.message, pair.step)
        self._add_messages_until(len(history))
        self._fall_back()
        return self._with_run_tokens(self._run_items.finished())

    def _add_messages_until(self, until: int) -> None:
        """What stands between two responses: the outcome of the first, or somebody else's words."""
        for message in self._run.history[self._position : until]:
            role = text(message.get("role")) or "none"
            kind = "history.demo" if message.get("is_demo") else f"history.{role}"
            count_record(
                self._report, kind, is_mapped=role in TRAJECTORY_ROLES, is_unknown=role not in TRAJECTORY_ROLES
            )
            if role in TRAJECTORY_ROLES:
                self._add_other_message(message, role)
        self._position = max(self._position, until)

    def _add_other_message(self, message: JsonObject, role: str) -> None:
        content = message.get("content")
        if not message.get("is_demo") and role in ("user", "tool"):
            ids = [
                tool_call_id for tool_call_id in sequence(message.get("tool_call_ids")) if isinstance(tool_call_id, str)
            ]
            call = self._run_items.waiting_call(ids)
            if call is not None:
                answer_call(call, plain_result(content))
                return
        message_content = content_of(content)
        is_prompt = role == "user" and not message.get("is_demo")
        self._run_items.items.append(
            NativeMessage(
                role=MessageRole.USER if is_prompt else MessageRole.SYSTEM,
                parts=tuple(message_content.parts),
                source=None if is_prompt and not self._has_answered else MessageSource.EVENT,
                metadata=present(
                    is_demo=message.get("is_demo") or None,
                    role=role if message.get("is_demo") or role == "tool" else None,
                    agent=self._other_agent(message),
                    blocks=message_content.other_blocks,
                ),
            )
        )

    def _other_agent(self, message: JsonObject) -> str | None:
        agent = text(message.get("agent"))
        return agent if agent != self._agent else None

    def _respond(self, place: int | None, number: int | None) -> None:
        self._fall_back()
        self._has_answered = True
        message = {} if place is None else self._run.history[place]
        step = {} if number is None else self._run.steps[number]
        if place is not None:
            count_record(self._report, "history.assistant", is_mapped=True)
        if number is not None:
            count_record(self._report, "step", is_mapped=True)
        content = content_of(message.get("content") if message else step.get("response") or step.get("thought"))
        self._run_items.add_response(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_thoughts(message.get("thinking_blocks")), *content.parts),
                model=self._run.model,
                metadata=present(
                    agent=self._other_agent(message) if message else None,
                    is_attempt=True if not message and number != len(self._run.steps) - 1 else None,
                    extra=step.get("extra_info"),
                    blocks=content.other_blocks,
                ),
            ),
            self._calls(message, step, number if number is not None else place),
        )
        if number is not None and not self._run_items.last_calls:
            self._add_observation(step)

    def _calls(self, message: JsonObject, step: JsonObject, number: int | None) -> list[PendingCall]:
        state = _state(step)
        detail = present(
            state={name: value for name, value in state.items() if name != "diff"},
            execution_time=step.get("execution_time"),
        )
        calls = [
            self._call(call, detail, state)
            for call in (*sequence(message.get("tool_calls")), *sequence(step.get("tool_calls") if not message else ()))
        ]
        action = text(message.get("action")) or text(step.get("action"))
        if not calls and action is not None and action.strip():
            command_call = PendingCall(f"step-{number}", "bash", {"command": action}, detail=detail)
            command_call.files = command_files(action, state)
            calls = [command_call]
        if calls and step.get("observation") is not None:
            self._observation = step["observation"]
        return calls

    def _call(self, value: Any, detail: Any, state: JsonObject) -> PendingCall:
        function = mapping(mapping(value).get("function"))
        name, arguments = text(function.get("name")) or "", json_in_text(function.get("arguments"))
        pending_call = PendingCall(text(mapping(value).get("id")) or "", name, arguments, detail=detail)
        pending_call.files = call_files(name, arguments, state)
        return pending_call

    def _fall_back(self) -> None:
        call = self._run_items.waiting_call()
        if call is not None and self._observation is not UNSET:
            answer_call(call, self._observation)
        self._observation = UNSET

    def _add_observation(self, step: JsonObject) -> None:
        """An answer to a response that asked for nothing: why it has to be repeated."""
        if observation := content_text(step.get("observation")):
            event = NativeMessage(role=MessageRole.USER, parts=(TextPart(observation),), source=MessageSource.EVENT)
            self._run_items.items.append(event)

    def _with_run_tokens(self, items: list[Item]) -> list[Item]:
        """Only the whole run's tokens are told; its last response carries them."""
        stats = mapping(self._run.info.get("model_stats"))
        sent, received = whole_number(stats.get("tokens_sent")), whole_number(stats.get("tokens_received"))
        if not sent and not received:
            return items
        tokens = Tokens(input=sent, output=received)
        for number in range(len(items) - 1, -1, -1):
            item = items[number]
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                items[number] = _with_tokens(item, tokens)
                break
        return items


def _next_response_place(responses: list[tuple[int, JsonObject]], position: int, default: int) -> int:
    """Where the next response stands."""
    number = bisect_left(responses, position, key=lambda response: response[0])
    return responses[number][0] if number < len(responses) else default


def _with_tokens(message: NativeMessage, tokens: Tokens) -> NativeMessage:
    return replace(message, tokens=tokens, metadata={**mapping(message.metadata), "tokens_of": "the whole run"})


def _state(step: JsonObject) -> JsonObject:
    """Where the shell stood: an object, or JSON in a text."""
    return config_of(step.get("state"))


def _thoughts(blocks: Any) -> list[Part]:
    return [part for part in content_of(sequence(blocks)).parts if isinstance(part, ReasoningPart)]


def _public_fields(repository: JsonObject) -> dict[str, Any] | None:
    return present(**{name: repository.get(name) for name in ("type", "repo_name", "github_url", "base_commit")})


# --- mini-swe-agent's `.traj.json`: the messages of a run as they went to the model, with every response in full.

NEW_TASK = "The user added a new task: "
FENCE = re.compile(r"```(?:bash|mswea_bash_command)(\s*+)")
END = "\n```"
RETURNED = re.compile(r"<returncode>(-?\d{1,9})</returncode>")
MINI_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "exit"})
INTERRUPTED = frozenset({"UserInterruption", "KeyboardInterrupt"})
MINI_SETTINGS = ("model_name", "model_class", "model_kwargs", "temperature", "top_p")
SECRET = re.compile(r"key|token|secret|password|credential|header", re.IGNORECASE)


class MiniRun(Struct, frozen=True):
    """A run's messages and what is told of it."""

    messages: list[JsonObject]
    info: JsonObject

    @property
    def id(self) -> str | None:
        """The id of its first response: no other run has it."""
        words = (text(_response(message).get("id")) for message in self.messages)
        return next((id for id in words if id is not None), None)

    @property
    def beginning(self) -> list[Any]:
        """What was said up to the first response."""
        return [[_role(message), message.get("content"), message.get("output")] for message in self.messages[:3]]


def mini_run(document: JsonObject, report: Report) -> MiniRun:
    count_sections(report, document)
    messages = checked_objects(sequence(document.get("messages")), "message", report)
    return MiniRun(messages, mapping(document.get("info")))


def read_mini(run: MiniRun, key: str, size: int, report: Report) -> Iterator[NativeTurn]:
    """A turn for the task, and one for each that a person added when the run would have ended."""
    begins = [number for number, candidate in enumerate(run.messages) if _is_task(candidate) and number > 0]
    ends = [*begins, len(run.messages)]
    turn_count = 0
    for start, end in zip([0, *begins], ends, strict=True):
        mini_turn = _MiniRun(run, report)
        for message in run.messages[start:end]:
            mini_turn.add_message(message)
        is_last = end == len(run.messages)
        items = mini_turn.run_items.finished()
        items = with_files(items, patched_files(run.info.get("submission"))) if is_last else items
        if items:
            turn_key = key if turn_count == 0 else f"{key}#{turn_count}"
            yield _turn(
                run, mini_turn, items, turn_key, size, is_last=is_last, parent=turn_count - 1 if turn_count else None
            )
            turn_count += 1


def _is_task(message: JsonObject) -> bool:
    return mapping(message.get("extra")).get("interrupt_type") == "UserNewTask" or (
        message.get("role") == "user"
        and isinstance(content := message.get("content"), str)
        and content.startswith(NEW_TASK)
    )


def _turn(
    run: MiniRun, mini_turn: _MiniRun, items: list[Item], key: str, size: int, *, is_last: bool, parent: int | None
) -> NativeTurn:
    status = text(run.info.get("exit_status")) if is_last else "Submitted"
    is_stopped = status in INTERRUPTED
    config = mapping(run.info.get("config"))
    fields = run.info if is_last else {}
    return NativeTurn(
        key=key,
        records=identity(items),
        names=tuple(item.native for item in items if isinstance(item, NativeMessage) and item.native),
        items=tuple(items),
        parent=parent,
        closed=status is not None,
        error=None if status in (None, "Submitted") or is_stopped else status,
        interrupted=is_stopped,
        started=mini_turn.times[0] if mini_turn.times else None,
        ended=mini_turn.times[-1] if mini_turn.times else None,
        workspace=text(mapping(config.get("environment")).get("cwd")),
        version=text(run.info.get("mini_version")),
        config=_settings(config),
        metadata=present(**{name: fields.get(name) for name in ("exit_status", "model_stats", "submission")}),
        end=size,
    )


def _settings(config: JsonObject) -> dict[str, Any] | None:
    """The model's and the limits, without what may be a key."""
    model, agent = mapping(config.get("model")), mapping(config.get("agent"))
    model_settings = {name: model.get(name) for name in MINI_SETTINGS if name != "model_kwargs"}
    model_arguments = {
        name: value for name, value in mapping(model.get("model_kwargs")).items() if not SECRET.search(name)
    }
    limits = {name: agent.get(name) for name in ("step_limit", "cost_limit", "mode")}
    return present(model=present(**model_settings, model_kwargs=model_arguments), **limits)


def _response(message: JsonObject) -> JsonObject:
    """What the provider sent, in full."""
    if message.get("object") == "response":
        return message
    return mapping(mapping(message.get("extra")).get("response"))


class _MiniRun:
    def __init__(self, run: MiniRun, report: Report) -> None:
        self._run, self._report = run, report
        self.run_items = RunItems()
        self.times: list[int] = []
        self._number = 0
        self._has_answered = False
        model = mapping(mapping(run.info.get("config")).get("model"))
        self._model = text(model.get("model_name"))

    def add_message(self, message: JsonObject) -> None:
        kind = "output" if message.get("type") == "function_call_output" else _role(message)
        is_known = kind in MINI_ROLES or kind == "output"
        count_record(self._report, f"message.{kind}", is_mapped=is_known, is_unknown=not is_known)
        time = _time(message)
        self.times += [] if time is None else [time]
        if kind == "assistant":
            self._respond(message, time)
        elif is_known:
            self._add_other_message(message, kind, time)

    def _add_other_message(self, message: JsonObject, kind: str, time: int | None) -> None:
        extra = mapping(message.get("extra"))
        content = message.get("output") if kind == "output" else message.get("content")
        id = text(message.get("tool_call_id")) or text(message.get("call_id"))
        is_answer = kind in ("user", "tool", "output") and extra.get("interrupt_type") is None
        call = self.run_items.waiting_call([id] if id is not None else ()) if is_answer else None
        if call is not None:
            _answer(call, content, extra, time)
            return
        message_content = content_of(content)
        if kind == "exit" and not message_content.parts:
            return
        is_prompt = kind == "user"
        self.run_items.items.append(
            NativeMessage(
                role=MessageRole.USER if is_prompt else MessageRole.SYSTEM,
                parts=tuple(message_content.parts),
                at=time,
                source=self._source(message, is_prompt),
                metadata=present(
                    role=kind if kind not in ("user", "system") else None,
                    interrupt=extra.get("interrupt_type"),
                    exit_status=extra.get("exit_status"),
                    blocks=message_content.other_blocks,
                ),
            )
        )

    def _source(self, message: JsonObject, is_prompt: bool) -> MessageSource | None:
        """A task may come from anybody; what is added to it while it runs comes from a person."""
        kind = text(mapping(message.get("extra")).get("interrupt_type")) or ""
        if kind.startswith("User") or (is_prompt and _is_task(message)):
            return MessageSource.HUMAN
        return None if is_prompt and not self._has_answered else MessageSource.EVENT

    def _respond(self, message: JsonObject, time: int | None) -> None:
        self._has_answered = True
        response, extra = _response(message), mapping(message.get("extra"))
        parts, calls = _parts_and_calls(message)
        choice = mapping(next(iter(sequence(response.get("choices"))), None))
        pending_calls = calls or self._actions(message, extra)
        for call in pending_calls:
            call.at = time
        self.run_items.add_response(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=(*_reasoning(message, mapping(choice.get("message")), parts), *parts),
                native=text(response.get("id")),
                at=time,
                model=text(response.get("model")) or self._model,
                provider=text(response.get("provider")),
                tokens=chat_tokens(response.get("usage")),
                finish_reason=text(choice.get("finish_reason")) or text(response.get("status")),
                metadata=present(cost=extra.get("cost") or mapping(response.get("usage")).get("cost")),
            ),
            pending_calls,
        )

    def _actions(self, message: JsonObject, extra: JsonObject) -> list[PendingCall]:
        """Commands in the text: as the tool itself read them, or as it would have."""
        words = [text(mapping(action).get("command")) for action in sequence(extra.get("actions"))]
        commands = [command for command in words if command is not None]
        if not commands and "actions" not in extra:
            content = message.get("content")
            commands = [command.strip() for command in _fenced(content if isinstance(content, str) else "")]
            commands = commands if len(commands) == 1 else []  # anything else was refused, and asked for again
        command_calls = []
        for command in commands:
            self._number += 1
            command_calls.append(PendingCall(f"command-{self._number}", "bash", {"command": command}))
        return command_calls


def _role(message: JsonObject) -> str:
    return "assistant" if message.get("object") == "response" else text(message.get("role")) or "none"


def _time(message: JsonObject) -> int | None:
    """When a message was written; else when its response was made."""
    seconds = mapping(message.get("extra")).get("timestamp")
    if seconds is None:
        response = _response(message)
        seconds = response.get("created") or response.get("created_at")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < 1e12:
        return None
    return millis(seconds * 1000)


def _parts_and_calls(message: JsonObject) -> tuple[list[Part], list[PendingCall]]:
    """Text and calls of a chat message, or of the items of a response."""
    if message.get("object") != "response":
        fields = [mapping(tool_call) for tool_call in sequence(message.get("tool_calls"))]
        calls = [_call(text(tool_call.get("id")), mapping(tool_call.get("function"))) for tool_call in fields]
        return content_of(message.get("content")).parts, calls
    parts: list[Part] = []
    calls = []
    for item in map(mapping, sequence(message.get("output"))):
        if item.get("type") == "function_call":
            calls.append(_call(text(item.get("call_id")) or text(item.get("id")), item))
        elif item.get("type") == "reasoning":
            parts += content_of([item]).parts
        else:
            parts += content_of(item.get("content")).parts
    return parts, calls


def _call(id: str | None, function: JsonObject) -> PendingCall:
    return PendingCall(id or "", text(function.get("name")) or "", json_in_text(function.get("arguments")))


def _reasoning(message: JsonObject, choice: JsonObject, parts: list[Part]) -> list[Part]:
    """What a provider gives beside the text."""
    if any(isinstance(part, ReasoningPart) for part in parts):
        return []
    for fields in (message, choice):
        for name in ("reasoning_content", "reasoning"):
            if (thought := text(fields.get(name))) is not None:
                return [ReasoningPart(thought)]
        if thoughts := content_of(sequence(fields.get("thinking_blocks"))).parts:
            return thoughts
    return []


def _answer(call: PendingCall, content: Any, extra: JsonObject, time: int | None) -> None:
    answer_call(call, plain_result(content))
    call.done = time
    code = RETURNED.search(content[:2000]) if isinstance(content, str) else None
    call.detail = present(
        returncode=int(code[1]) if code else extra.get("returncode"), exception=extra.get("exception_info")
    )


def _fenced(text: str) -> Iterator[str]:
    """The blocks of commands in a text. White space before a command belongs to its fence."""
    position = 0
    while (fence := FENCE.search(text, position)) is not None:
        lines = fence[1].split("\n")
        position = fence.end()
        if len(lines) == 1:  # something else stands on the fence's own line
            continue
        start = fence.end() - len(lines[-1])
        block_end = text.find(END, start)
        if block_end < 0 and len(lines) > 2:  # nothing but white space is in it
            start -= len(lines[-2]) + 1
            block_end = text.find(END, start)
        if block_end < 0:
            return  # nor does any block behind it end
        yield text[start:block_end]
        position = block_end + len(END)


# --- SWE-agent and mini-swe-agent: one JSON document a run.

FORMAT = re.compile(rb'"trajectory_format"\s*:\s*"mini-swe-agent')
MINI = re.compile(rb'\s*\{\s*"(info|messages)"')
RUN = re.compile(rb'\s*\{\s*"(environment|trajectory|history|info|replay_config|attempts)"\s*:')
STEPS = re.compile(rb'"(trajectory|attempts|history)"\s*:\s*\[\s*(\{\s*"|\])')
STEP_SIGNS = (b'"observation"', b'"action"', b'"thought"', b'"is_demo"', b'"history"')
ENDINGS = (".traj.json", ".traj", ".json")


class SweAgent:
    origin = "swe-agent"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """mini-swe-agent's last run; batches lie wherever their user wanted them."""
        config_folder = environment.get("MSWEA_GLOBAL_CONFIG_DIR")
        roots = [Path(config_folder)] if config_folder else [home / ".config", home / "Library/Application Support"]
        places = [Place(root if config_folder else root / "mini-swe-agent", "mini-swe-agent") for root in roots]
        if folder := environment.get("SWE_AGENT_TRAJECTORY_DIR"):
            places.append(Place(Path(folder), "SWE-agent"))
        return places

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.size <= len(source.head) and (document := _short_document(head)) is not None:
            return is_mini(document) or is_run(document)
        return _begins_as_mini(source, head) or _begins_as_run(source, head)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        document = read_document(read_whole(source))
        report_damage(document, report)
        value = mapping(document.value)
        if value and "messages" in value:
            yield from _mini(value, source, report)
        elif value:
            id = run_name(source.path, beginning(value))
            yield Transcript(session=_session(id, source, value), turns=read_runs(value, id, source.size, report))
        elif document.damage is None:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"a JSON {type(document.value).__name__}, not a run")


def _short_document(head: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def is_mini(document: dict[str, Any]) -> bool:
    format_name = text(document.get("trajectory_format")) or ""
    return format_name.startswith("mini-swe-agent") and isinstance(document.get("messages"), list)


def is_run(document: dict[str, Any]) -> bool:
    steps = document.get("trajectory")
    if isinstance(document.get("attempts"), list):
        return "info" in document
    return isinstance(steps, list) and (isinstance(document.get("history"), list) or "environment" in document)


def _begins_as_mini(source: Source, head: bytes) -> bool:
    if MINI.match(head) is None:
        return False
    if FORMAT.search(head) or b'"mini_version"' in head:
        return True
    with source.path.open("rb") as file:
        file.seek(max(source.size - 512, 0))
        return FORMAT.search(file.read()) is not None


def _begins_as_run(source: Source, head: bytes) -> bool:
    if RUN.match(head) is None:
        return False
    is_named = source.path.suffix == ".traj"
    return STEPS.search(head) is not None and (is_named or sum(sign in head for sign in STEP_SIGNS) >= 2)


def run_name(path: Path, beginning: Any) -> str:
    """A run has no id: it is known by where it lies and by how it begins, which stay as they are while it grows."""
    return f"{place_of(path)}@{fingerprint(beginning)}"


def place_of(path: Path) -> str:
    """The folder of its batch, and the task."""
    name = path.name
    stem = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)
    folder = path.parent.parent if path.parent.name == stem else path.parent
    return f"{folder.name}/{stem}" if folder.name else stem


def _session(id: str, source: Source, document: dict[str, Any]) -> NativeSession:
    config, info = config_of(document.get("replay_config")), mapping(document.get("info"))
    return NativeSession(
        id=id,
        title=text(mapping(config.get("problem_statement")).get("id")) or place_of(source.path).rpartition("/")[2],
        version=text(info.get("swe_agent_version")),
        metadata=present(environment=text(document.get("environment"))),
    )


def _mini(document: dict[str, Any], source: Source, report: Report) -> Iterator[Transcript]:
    run = mini_run(document, report)
    instance = text(document.get("instance_id"))
    id = run.id or run_name(source.path, run.beginning)
    turns = list(read_mini(run, id, source.size, report))
    session = NativeSession(
        id=id,
        title=instance,
        version=text(run.info.get("mini_version")),
        created=turns[0].started if turns else None,
        metadata=present(format=text(document.get("trajectory_format"))),
    )
    yield Transcript(session=session, turns=turns)
