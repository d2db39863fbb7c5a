"""LangGraph running whole turns: a graph of a model and a tool, saved after every step, before the next one begins.

That is its durability `sync`, which keeps what the others keep. By default, `async`, it saves beside the next step,
mostly a request to the model: a crash can lose a step whose effects are known, and most of what saving takes falls into
the model layer's time, which is taken off. `EagerTurns` and `EagerDeltaTurns` run so.
The model node asks through the `openai` client. Converting the messages and asking are its model layer. A thread is
built by one `update_state`: the checkpoint that the next turn begins with is the same as after that many turns, for it
holds the whole list. With a `DeltaChannel` every turn is an update of its own, as its turns would leave it.
"""

import json
import os
import sqlite3
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, TypedDict

from benchmarks.chat_server import TOOL_SPEC
from benchmarks.peers.langgraph_saver import _messages
from benchmarks.turn_subject import LayerClock, Place, add
from benchmarks.workload import Turn


class GraphTurns:
    """With `SqliteSaver`, in the write-ahead log with `synchronous=full`."""

    durability = "sync"

    def __init__(self, place: Place) -> None:
        os.environ["LANGSMITH_TRACING"] = "false"
        self.layer = LayerClock()
        self._messages = import_module("langchain_core.messages")
        self._client = import_module("openai").OpenAI(base_url=place.url, api_key="none", max_retries=0)
        self._ask = self.layer.timed(self._asked)
        self._config = {"configurable": {"thread_id": place.session}}
        self._graph = self._compile(self._open_saver(place))

    def build(self, turns: Sequence[Turn]) -> None:
        update = {"messages": [message for turn in turns for message in _messages(turn)]}
        self._graph.update_state(self._config, update, as_node="model")

    def take_turn(self, text: str) -> str:
        question = {"messages": [self._messages.HumanMessage(text)]}
        state = self._graph.invoke(question, self._config, durability=self.durability)
        return str(state["messages"][-1].content)

    def close(self) -> None:
        self._client.close()
        self._connection.close()

    def _open_saver(self, place: Place) -> Any:
        self._connection: Any = sqlite3.connect(place.directory / "checkpoints.db", check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        return import_module("langgraph.checkpoint.sqlite").SqliteSaver(self._connection)

    def _reducer(self) -> Any:
        return import_module("langgraph.graph.message").add_messages

    def _compile(self, saver: Any) -> Any:
        reducer = self._reducer()

        class State(TypedDict):
            messages: Annotated[list[Any], reducer]

        graphs = import_module("langgraph.graph")
        graph = graphs.StateGraph(State)
        graph.add_node("model", lambda state: {"messages": [self._ask(state["messages"])]})
        graph.add_node("tools", self._run_tools)
        graph.add_edge(graphs.START, "model")
        graph.add_conditional_edges("model", _next_node, {"tools": "tools", "end": graphs.END})
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=saver)

    def _asked(self, messages: Sequence[Any]) -> Any:
        reply = self._client.chat.completions.create(
            model="benchmark-model", messages=[as_dict(message) for message in messages], tools=[TOOL_SPEC]
        )
        answer = reply.choices[0].message
        calls = [
            {"id": call.id, "name": call.function.name, "args": json.loads(call.function.arguments)}
            for call in answer.tool_calls or ()
        ]
        usage = {
            "input_tokens": reply.usage.prompt_tokens,
            "output_tokens": reply.usage.completion_tokens,
            "total_tokens": reply.usage.total_tokens,
        }
        return self._messages.AIMessage(answer.content or "", tool_calls=calls, usage_metadata=usage)

    def _run_tools(self, state: Any) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls
        results = [self._messages.ToolMessage(str(add(**call["args"])), tool_call_id=call["id"]) for call in calls]
        return {"messages": results}


class DeltaTurns(GraphTurns):
    """The list in a `DeltaChannel`: checkpoints hold what was added, and now and then the whole list."""

    def build(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self._graph.update_state(self._config, {"messages": _messages(turn)}, as_node="model")

    def _reducer(self) -> Any:
        reducer = import_module("langgraph.graph.message")._messages_delta_reducer
        return import_module("langgraph.channels.delta").DeltaChannel(reducer)


class EagerTurns(GraphTurns):
    durability = "async"


class EagerDeltaTurns(DeltaTurns):
    durability = "async"


class ServerTurns(GraphTurns):
    """With `PostgresSaver`."""

    def _open_saver(self, place: Place) -> Any:
        import psycopg
        from psycopg.rows import dict_row

        self._connection = psycopg.connect(place.postgres, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        saver = import_module("langgraph.checkpoint.postgres").PostgresSaver(self._connection)
        saver.setup()
        return saver


def as_dict(message: Any) -> dict[str, Any]:
    """A message as OpenAI's protocol has it."""
    if message.type == "human":
        return {"role": "user", "content": message.content}
    if message.type == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if not message.tool_calls:
        return {"role": "assistant", "content": message.content}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
        }
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content or None, "tool_calls": calls}


def _next_node(state: Any) -> str:
    return "tools" if state["messages"][-1].tool_calls else "end"
