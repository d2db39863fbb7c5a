"""Every verb of Weft, each declared once: `weft.verbs.rename(ledger, "main", "other")`.

A verb is loaded when it is first named. On a ledger of `weft.aio` it is awaited: `await
weft.verbs.rename.awaited(ledger, …)`. One that acts, such as `session send`, takes no ledger: `ledger.send` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.verbs.declaration import Verb

_MODULES = {
    "branch_verbs": "fork merge cherry_pick summarize undo checkout",
    "session_verbs": "sessions session_create session_configure session_send session_history session_promote"
    " session_unify session_pause session_resume session_complete rename alias archive delete move restore reflog"
    " settle",
    "reading_verbs": "search log tree show read context diff files blame",
    "report_verbs": "usage projects story audit stats graph_node graph_neighbours graph_path graph_history"
    " graph_lineage graph_calls graph_resources graph_policies graph_ancestry",
    "message_verbs": "inbox interrupt approvals approve reject"
    " room_create room_title room_archive room_restore room_fork room_add room_invite room_decline"
    " room_remove room_leave room_list room_show room_profile room_invitations room_read",
    "program_verbs": "program_list program_get program_history program_diff program_configure program_revert"
    " program_publish program_deprecate program_delete tag_add tag_remove tag_list nodes"
    " provider_create provider_configure provider_list provider_show model_create model_configure model_list"
    " model_show code_list info_validate info_activate info_archive info_list"
    " trigger_create trigger_list trigger_show trigger_configure trigger_pause trigger_resume"
    " trigger_history trigger_delete",
    "agent_verbs": "agent_create agent_configure agent_list agent_show agent_share agent_unshare agent_visibility"
    " agent_assign agent_stop agent_reset agent_pause human_create human_list human_show human_presence"
    " toolset_create toolset_list toolset_show toolset_edit toolset_delete"
    " task_create task_list task_show task_configure task_assign task_start task_fail",
}
MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
"""By verb the module of this package that declares it."""


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'weft.verbs' has no attribute {name!r}")
    verb = globals()[name] = getattr(import_module(f"weft.verbs.{MODULE_OF[name]}"), name)
    return verb


def __dir__() -> list[str]:
    """All verbs, also those that are not loaded yet."""
    return sorted({*globals(), *MODULE_OF})


def find_verb(words: str) -> Verb[..., Any] | None:
    """The verb of a name as it is typed, such as `session create`."""
    name = words.replace(" ", "_").replace("-", "_")
    verb: Verb[..., Any] | None = __getattr__(name) if name in MODULE_OF else None
    return verb


def every_verb() -> Iterator[Verb[..., Any]]:
    """All of them, which loads all their modules."""
    return map(__getattr__, MODULE_OF)
