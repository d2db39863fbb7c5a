"""SWE-agent's `.traj`: one document a run, one task, then responses and actions until it ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.exchange.importers.chat import content_of, content_text
from weft.exchange.importers.documents import read_document
from weft.exchange.importers.port import Item, NativeMessage, NativeTurn, Report, Tokens
from weft.exchange.importers.records.builder import PendingCall, identity
from weft.exchange.importers.records.values import (
    JsonObject,
    canonical,
    json_in_text,
    mapping,
    present,
    sequence,
    text,
    whole,
)
from weft.exchange.importers.swe_agent.runs import (
    RunItems,
    account,
    account_sections,
    align,
    answer,
    called,
    commanded,
    objects,
    patched,
    with_files,
)
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.dialects import plain_result
from weft.ledger.model import Part, ReasoningPart, TextPart

ROLES = frozenset({"system", "user", "assistant", "tool"})
SETTINGS = ("name", "temperature", "top_p", "per_instance_cost_limit", "total_cost_limit")
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
        history=objects(sequence(document.get("history")), "history", report),
        steps=objects(sequence(document.get("trajectory")), "step", report),
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
    steps = [mapping(each) for each in sequence(run.get("trajectory"))[:1]]
    return [values, [[step.get("response"), step.get("action")] for step in steps]]


def read_runs(document: JsonObject, key: str, size: int, report: Report) -> Iterator[NativeTurn]:
    """Every attempt as a turn of its own; where there were several, the one that was chosen comes last."""
    account_sections(report, document)
    attempts = objects(sequence(document.get("attempts")), "attempt", report)
    if not attempts:
        run = run_of(document, report)
        if run.history or run.steps:
            yield _Run(run, report).turn(key, size)
        return
    for kind in ("history", "trajectory"):
        for _ in sequence(document.get(kind)):
            account(report, f"{kind}.repeated", is_mapped=False)
    chosen = whole(mapping(document.get("info")).get("best_attempt_idx"))
    numbers = sorted(range(len(attempts)), key=lambda number: number == chosen)
    for place, number in enumerate(numbers):
        account_sections(report, attempts[number])
        end = max(size - len(numbers) + 1 + place, 0)  # the session stands on the one that reaches furthest
        yield _Run(run_of(attempts[number], report), report).turn(f"{key}#{number}", end)


class _Run:
    """Makes the turn of one run."""

    def __init__(self, run: Run, report: Report) -> None:
        self._run, self._report = run, report
        self._run_items = RunItems()
        self._at = 0
        self._has_answered = False
        self._observation: Any = UNSET  # what the last step says came of its action, if no message does
        self._agent = next((agent for each in run.history if (agent := text(each.get("agent"))) is not None), None)

    def turn(self, key: str, size: int) -> NativeTurn:
        run, info = self._run, self._run.info
        items = with_files(self._items(), patched(info.get("submission")))
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
                repository=_public(mapping(repository.get("repo"))),
            ),
            end=size,
        )

    def _settings(self) -> dict[str, Any] | None:
        """The model's, chosen by name: keys lie beside them."""
        fields = mapping(mapping(self._run.config.get("agent")).get("model"))
        return present(**{name: fields.get(name) for name in SETTINGS})

    def _items(self) -> list[Item]:
        history = self._run.history
        responses = [
            (number, each)
            for number, each in enumerate(history)
            if each.get("role") == "assistant" and not each.get("is_demo")
        ]
        for pair in align(responses, self._run.steps):
            self._between(_next(responses, self._at, len(history)) if pair.message is None else pair.message)
            if pair.message is not None:
                self._at = pair.message + 1
            self._respond(pair.message, pair.step)
        self._between(len(history))
        self._fall_back()
        return self._counted(self._run_items.finished())

    def _between(self, end: int) -> None:
        """What stands between two responses: the outcome of the first, or somebody else's words."""
        for message in self._run.history[self._at : end]:
            role = text(message.get("role")) or "none"
            kind = "history.demo" if message.get("is_demo") else f"history.{role}"
            account(self._report, kind, is_mapped=role in ROLES, is_unknown=role not in ROLES)
            if role in ROLES:
                self._other(message, role)
        self._at = max(self._at, end)

    def _other(self, message: JsonObject, role: str) -> None:
        content = message.get("content")
        if not message.get("is_demo") and role in ("user", "tool"):
            ids = [
                tool_call_id for tool_call_id in sequence(message.get("tool_call_ids")) if isinstance(tool_call_id, str)
            ]
            call = self._run_items.waiting(ids)
            if call is not None:
                answer(call, plain_result(content))
                return
        found = content_of(content)
        is_prompt = role == "user" and not message.get("is_demo")
        self._run_items.items.append(
            NativeMessage(
                role=MessageRole.USER if is_prompt else MessageRole.SYSTEM,
                parts=tuple(found.parts),
                source=None if is_prompt and not self._has_answered else MessageSource.EVENT,
                metadata=present(
                    is_demo=message.get("is_demo") or None,
                    role=role if message.get("is_demo") or role == "tool" else None,
                    agent=self._other_agent(message),
                    blocks=found.other_blocks,
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
            account(self._report, "history.assistant", is_mapped=True)
        if number is not None:
            account(self._report, "step", is_mapped=True)
        content = content_of(message.get("content") if message else step.get("response") or step.get("thought"))
        self._run_items.say(
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
        if number is not None and not self._run_items.asked:
            self._observed(step)

    def _calls(self, message: JsonObject, step: JsonObject, number: int | None) -> list[PendingCall]:
        state = _state(step)
        detail = present(
            state={name: value for name, value in state.items() if name != "diff"},
            execution_time=step.get("execution_time"),
        )
        found = [
            self._call(call, detail, state)
            for call in (*sequence(message.get("tool_calls")), *sequence(step.get("tool_calls") if not message else ()))
        ]
        action = text(message.get("action")) or text(step.get("action"))
        if not found and action is not None and action.strip():
            asked = PendingCall(f"step-{number}", "bash", {"command": action}, detail=detail)
            asked.files = commanded(action, state)
            found = [asked]
        if found and step.get("observation") is not None:
            self._observation = step["observation"]
        return found

    def _call(self, value: Any, detail: Any, state: JsonObject) -> PendingCall:
        function = mapping(mapping(value).get("function"))
        name, given = text(function.get("name")) or "", json_in_text(function.get("arguments"))
        asked = PendingCall(text(mapping(value).get("id")) or "", name, given, detail=detail)
        asked.files = called(name, given, state)
        return asked

    def _fall_back(self) -> None:
        call = self._run_items.waiting()
        if call is not None and self._observation is not UNSET:
            answer(call, self._observation)
        self._observation = UNSET

    def _observed(self, step: JsonObject) -> None:
        """An answer to a response that asked for nothing: why it has to be repeated."""
        if observation := content_text(step.get("observation")):
            event = NativeMessage(role=MessageRole.USER, parts=(TextPart(observation),), source=MessageSource.EVENT)
            self._run_items.items.append(event)

    def _counted(self, items: list[Item]) -> list[Item]:
        """Only the whole run's tokens are told; its last response carries them."""
        stats = mapping(self._run.info.get("model_stats"))
        sent, received = whole(stats.get("tokens_sent")), whole(stats.get("tokens_received"))
        if not sent and not received:
            return items
        tokens = Tokens(input=sent, output=received)
        for number in range(len(items) - 1, -1, -1):
            item = items[number]
            if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                items[number] = _with_tokens(item, tokens)
                break
        return items


def _next(responses: list[tuple[int, JsonObject]], at: int, end: int) -> int:
    """Where the next response stands."""
    number = bisect_left(responses, at, key=lambda response: response[0])
    return responses[number][0] if number < len(responses) else end


def _with_tokens(message: NativeMessage, tokens: Tokens) -> NativeMessage:
    return replace(message, tokens=tokens, metadata={**mapping(message.metadata), "tokens_of": "the whole run"})


def _state(step: JsonObject) -> JsonObject:
    """Where the shell stood: an object, or JSON in a text."""
    return config_of(step.get("state"))


def _thoughts(blocks: Any) -> list[Part]:
    return [part for part in content_of(sequence(blocks)).parts if isinstance(part, ReasoningPart)]


def _public(repository: JsonObject) -> dict[str, Any] | None:
    return present(**{name: repository.get(name) for name in ("type", "repo_name", "github_url", "base_commit")})
