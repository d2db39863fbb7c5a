"""The stores that Weft is measured beside. None is imported before it is opened."""

from pathlib import Path

from benchmarks.peers.bare import BareInsert
from benchmarks.peers.langgraph_saver import Checkpoint, DeltaCheckpoint, EveryStep
from benchmarks.peers.llm_logstore import LogStoreAppend, LogStoreLog
from benchmarks.peers.openai_agents import AdvancedSession
from benchmarks.subject import Spec, Subject

_LANGGRAPH = ("langgraph", "langgraph-checkpoint-sqlite")


def open_bare(directory: Path) -> Subject:
    return BareInsert(directory)


BARE = Spec(
    "bare insert",
    open_bare,
    ("apsw",),
    note="one row a turn, encoded before the clock starts",
    loaded_per_turn=1,
)

FORKING_PEER = "OpenAI Agents AdvancedSQLiteSession"
"""The quickest of those that can fork."""

PEERS = (
    Spec(
        FORKING_PEER,
        AdvancedSession,
        ("openai-agents",),
        note="one `add_items` a turn; without usage",
    ),
    Spec(
        "llm LogStore.append",
        LogStoreAppend,
        ("llm",),
        note="messages only, without model and usage; one transaction put around it",
    ),
    Spec("llm LogStore.log", LogStoreLog, ("llm",), note="what llm itself calls: two responses a turn"),
    Spec(
        "LangGraph SqliteSaver",
        Checkpoint,
        _LANGGRAPH,
        note="one `update_state` a turn: one checkpoint",
    ),
    Spec(
        "LangGraph SqliteSaver, DeltaChannel",
        DeltaCheckpoint,
        _LANGGRAPH,
        note="one `update_state` a turn, the list in a `DeltaChannel`",
    ),
    Spec(
        "LangGraph SqliteSaver, every step",
        EveryStep,
        _LANGGRAPH,
        max_depth=100,
        note="the graph runs and saves each step, as is its default; measured only to 100 turns",
    ),
)
