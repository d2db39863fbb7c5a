"""LangGraph: `SqliteSaver`, or `PostgresSaver`, under a small graph with one list of messages, filled in three ways.

`Checkpoint` and `DeltaCheckpoint` record a finished turn by one `update_state`: one checkpoint a turn, the
cheapest public way. The second keeps the list in a `DeltaChannel`, at its default settings. `EveryStep` runs
the graph as an agent does, with the library's default durability: a checkpoint for every step.
A fork is the library's own copy of a checkpoint.
"""

import os
import sqlite3
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.measure import Action
from benchmarks.subject import durability
from benchmarks.workload import Turn, some_turns

THREAD = "main"


class Checkpoint:
    """The whole list in every checkpoint."""

    def __init__(self, directory: Path) -> None:
        self._connection = sqlite3.connect(directory / "checkpoints.db", check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        saver = import_module("langgraph.checkpoint.sqlite").SqliteSaver(self._connection)
        self._begin(saver, THREAD)

    def _begin(self, saver: Any, thread: str) -> None:
        os.environ["LANGSMITH_TRACING"] = "false"
        self._config = {"configurable": {"thread_id": thread}}
        self._turn = some_turns(1)[0]
        self._graph = self._compile(saver)

    def appender(self, turn: Turn) -> Action:
        update = {"messages": _messages(turn)}
        return lambda: self._graph.update_state(self._config, update, as_node="model")

    def forker(self) -> Action | None:
        config = self._graph.get_state(self._config).config
        return lambda: self._graph.update_state(config, None, as_node="__copy__")

    def rejoin(self) -> None: ...

    def load(self) -> int:
        return len(self._graph.get_state(self._config).values["messages"])

    def settings(self) -> str:
        (journal,) = self._connection.execute("pragma journal_mode").fetchone()
        (synchronous,) = self._connection.execute("pragma synchronous").fetchone()
        return durability(journal, synchronous)

    def close(self) -> None:
        self._connection.close()

    def _reducer(self) -> Any:
        return import_module("langgraph.graph.message").add_messages

    def _compile(self, saver: Any) -> Any:
        reducer = self._reducer()

        class State(TypedDict):
            messages: Annotated[list[Any], reducer]

        graphs = import_module("langgraph.graph")
        graph = graphs.StateGraph(State)
        graph.add_node("model", self._run_model)
        graph.add_node("tools", self._run_tool)
        graph.add_edge(graphs.START, "model")
        graph.add_conditional_edges("model", _next_node, {"tools": "tools", "end": graphs.END})
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=saver)

    def _run_model(self, state: Any) -> dict[str, Any]:
        _, call, _, answer = _messages(self._turn)
        return {"messages": [call if state["messages"][-1].type == "human" else answer]}

    def _run_tool(self, state: Any) -> dict[str, Any]:
        return {"messages": [_messages(self._turn)[2]]}


class DeltaCheckpoint(Checkpoint):
    """Only what was added, and now and then the whole list."""

    def _reducer(self) -> Any:
        reducer = import_module("langgraph.graph.message")._messages_delta_reducer
        return import_module("langgraph.channels.delta").DeltaChannel(reducer)


class ServerCheckpoint(Checkpoint):
    """The same in PostgreSQL, whose saver keeps each value of a channel once for each of its versions."""

    def __init__(self, address: str, session: str = THREAD) -> None:
        import psycopg
        from psycopg.rows import dict_row

        self._server = psycopg.connect(address, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        saver = import_module("langgraph.checkpoint.postgres").PostgresSaver(self._server)
        saver.setup()
        self._begin(saver, session)

    def settings(self) -> str:
        shown = [self._server.execute(f"show {name}").fetchone() for name in ("fsync", "synchronous_commit")]
        return "fsync={}, synchronous_commit={}".format(*(next(iter((row or {}).values()), "?") for row in shown))

    def close(self) -> None:
        self._server.close()


class EveryStep(Checkpoint):
    """The graph runs, and saves after each step."""

    def appender(self, turn: Turn) -> Action:
        query = {"messages": [_messages(turn)[0]]}

        def append() -> None:
            self._turn = turn
            self._graph.invoke(query, self._config)

        return append


def _messages(turn: Turn) -> list[Any]:
    messages = import_module("langchain_core.messages")
    call = {"id": turn.call, "name": turn.tool, "args": turn.arguments}
    usage = {**turn.usage, "total_tokens": sum(turn.usage.values())}
    return [
        messages.HumanMessage(turn.query, id=f"{turn.call}-query"),
        messages.AIMessage("", tool_calls=[call], id=f"{turn.call}-call"),
        messages.ToolMessage(turn.result, tool_call_id=turn.call, id=f"{turn.call}-result"),
        messages.AIMessage(turn.response, usage_metadata=usage, id=f"{turn.call}-response"),
    ]


def _next_node(state: Any) -> str:
    return "tools" if state["messages"][-1].tool_calls else "end"
