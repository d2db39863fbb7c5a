"""simonw/llm: `LogStore`, a content-addressed tree of messages, in the two ways it can be filled.

`log` is what llm itself calls: each response with its whole prompt, so two calls for a turn with a tool call,
and every earlier message hashed again. `append` adds a turn's four messages to a thread and keeps no model
and no usage; it is given one transaction around it, which it does not take by itself.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Action
from benchmarks.subject import durability
from benchmarks.workload import Turn, some_turns


class LogStoreAppend:
    """A turn's messages added to the end of a thread."""

    def __init__(self, directory: Path) -> None:
        self._database: Any = import_module("sqlite_utils").Database(directory / "logs.db")
        self._database.enable_wal()
        self._database.execute("pragma synchronous=full")
        self._store: Any = import_module("llm.logs").LogStore(self._database)
        self._store.ensure_thread("main", "main")

    def appender(self, turn: Turn) -> Action:
        messages = _messages(turn)

        def append() -> None:
            with self._database.atomic():
                self._store.append("main", messages)

        return append

    def forker(self) -> Action | None:
        tip = self._store.thread_tip("main")
        return lambda: self._store.fork(tip, name="fork", forked_from="main")

    def rejoin(self) -> None: ...

    def load(self) -> int:
        return len(self._store.thread_messages("main"))

    def settings(self) -> str:
        (synchronous,) = self._database.execute("pragma synchronous").fetchone()
        return durability(self._database.journal_mode, synchronous)

    def close(self) -> None:
        self._database.close()


class LogStoreLog(LogStoreAppend):
    """Each response logged with its prompt, from a conversation with a model that has its answers ready."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        llm = import_module("llm")
        self._turn = some_turns(1)[0]
        self._tool = llm.Tool(name=self._turn.tool, implementation=lambda path, mode: self._turn.result)
        self._call_type = llm.ToolCall
        model = type("Canned", (llm.Model,), {"model_id": "canned", "supports_tools": True, "execute": self._answer})
        self._conversation = llm.Conversation(model=model(), id="main", name="main")
        self._conversation.loaded_messages = self._store.thread_messages("main")

    def appender(self, turn: Turn) -> Action:
        self._turn = turn
        responses = []
        for response in self._conversation.chain(turn.query, tools=[self._tool]).responses():
            response.text()
            responses.append(response)
        del self._conversation.responses[:-1]  # each holds its whole history; the next needs only the last

        def append() -> None:
            for response in responses:
                self._store.log(response)

        return append

    def _answer(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        response.set_usage(input=self._turn.usage["input_tokens"], output=self._turn.usage["output_tokens"])
        if prompt.tool_results:
            yield self._turn.response
        else:
            call = self._call_type(self._turn.tool, self._turn.arguments, tool_call_id=self._turn.call)
            response.add_tool_call(call)


def _messages(turn: Turn) -> list[Any]:
    parts = import_module("llm.parts")
    call = parts.ToolCallPart(name=turn.tool, arguments=turn.arguments, tool_call_id=turn.call)
    result = parts.ToolResultPart(name=turn.tool, output=turn.result, tool_call_id=turn.call)
    return [
        parts.Message(role="user", parts=[parts.TextPart(text=turn.query)]),
        parts.Message(role="assistant", parts=[call]),
        parts.Message(role="tool", parts=[result]),
        parts.Message(role="assistant", parts=[parts.TextPart(text=turn.response)]),
    ]
