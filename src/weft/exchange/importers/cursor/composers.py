"""Composers and tabs as sessions."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.cursor.bubbles import Bubble
from weft.exchange.importers.cursor.compactions import Summary
from weft.exchange.importers.cursor.messages import Setting
from weft.exchange.importers.cursor.values import path_of
from weft.exchange.importers.transcript import NativeSession
from weft.exchange.importers.values import mapping, millis, present, sequence, text, whole

TOLD = (
    "status", "subtitle", "usageData", "contextTokensUsed", "contextTokenLimit", "contextUsagePercent",
    "totalLinesAdded", "totalLinesRemoved", "filesChangedCount", "tokenCount", "unifiedMode", "isAgentic", "isDraft",
    "isBestOfNSubcomposer", "createdFromBackgroundAgent", "prUrl", "_v",
)  # fmt: skip
WITHOUT = "/without-headers"


def setting(composer: dict[str, Any]) -> Setting:
    model = text(mapping(composer.get("modelConfig")).get("modelName"))
    return Setting(
        model=None if model == "default" else model,
        is_subagent=text(mapping(composer.get("subagentInfo")).get("parentComposerId")) is not None,
        applied=_applied(composer),
    )


def _applied(composer: dict[str, Any]) -> dict[tuple[str, int], str]:
    """What became of suggested versions of files."""
    listed = [mapping(each) for found in mapping(composer.get("codeBlockData")).values() for each in _each(found)]
    told = ((path_of(each.get("uri")), whole(each.get("version")) or 0, text(each.get("status"))) for each in listed)
    return {(path, version): status for path, version, status in told if path is not None and status is not None}


def _each(found: Any) -> list[Any]:
    """Older versions have a list by file, newer ones an object."""
    return list(found.values()) if isinstance(found, dict) else sequence(found)


def told(id: str, composer: dict[str, Any], listed: dict[str, Any], workspace: str | None) -> NativeSession:
    info = mapping(composer.get("subagentInfo")) or mapping(listed.get("subagentInfo"))
    both = listed | {name: value for name, value in composer.items() if value is not None}
    updated = millis(both.get("lastUpdatedAt")) or millis(composer.get("lastSendTime"))
    return NativeSession(
        id=id,
        title=text(composer.get("name")) or text(listed.get("name")) or text(composer.get("chatTitle")),
        workspace=workspace,
        git_branch=_branch(both),
        created=millis(both.get("createdAt")),
        parent=text(info.get("parentComposerId")),
        spawn_call=text(info.get("toolCallId")),
        agent=text(info.get("subagentTypeName")),
        archived=listed.get("isArchived") is True or composer.get("isArchived") is True,
        metadata=present(
            **{name: both.get(name) for name in TOLD},
            model=mapping(composer.get("modelConfig")),
            updated=updated,
        ),
        told_at=updated,
    )


def _branch(both: dict[str, Any]) -> str | None:
    """The one that it was begun on; else the one it stands on."""
    begun = text(both.get("createdOnBranch"))
    active = both.get("activeBranch")
    return begun or text(active) or text(mapping(active).get("branchName"))


def headless(session: NativeSession) -> NativeSession:
    """Bubbles of a session that its headers do not name: what was taken back or generated anew, with no word of where
    it belonged. They are found, and not shown as what the session says."""
    return NativeSession(
        id=f"{session.id}{WITHOUT}",
        title=f"{session.title or session.id} (bubbles without headers)",
        workspace=session.workspace,
        created=session.created,
        archived=True,
        metadata={"session": session.id},
    )


def placeless(summaries: list[Summary], bubbles: list[Bubble]) -> list[str]:
    """Summaries that no turn can be made of, since the bubbles that they name are gone."""
    here = {bubble.id for bubble in bubbles}
    return [summary.words for summary in summaries if here.isdisjoint(summary.anchors)]
