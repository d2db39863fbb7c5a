"""Small worlds of programs that tests share."""

from typing import Any

from weft.ledger.api.ledger import Ledger
from weft.programs import Programs

PROVIDER: dict[str, Any] = {
    "providerType": "cloudflare-ai-gateway",
    "accountId": "${CLOUDFLARE_ACCOUNT_ID}",
    "gatewayId": "${CLOUDFLARE_GATEWAY_ID}",
}
MODEL: dict[str, Any] = {
    "name": "Claude Balanced",
    "modelId": "claude-sonnet-4-5",
    "provider": "@(cf-gateway)",
    "temperature": 0.7,
    "maxTokens": 4000,
    "topP": 0.9,
    "situations": {
        "coding": {"temperature": 0, "maxTokens": 8000},
        "creative": {"temperature": 0.95},
        "quick": {"maxTokens": 500},
    },
}
AGENT: dict[str, Any] = {
    "name": "Research Agent",
    "systemPrompt": "You are a research assistant...",
    "tools": ["@(web-search)", "@(summarize)"],
    "defaultModel": "@(claude-balanced)",
    "harness": {"maxTurns": 50, "reflectOnFailure": True, "checkpointEvery": 5},
}
TASK: dict[str, Any] = {
    "title": "Research quantum computing",
    "spec": {
        "inputs": ["topic: quantum computing"],
        "outputs": ["summary document"],
        "constraints": ["max 2000 words"],
        "successCriteria": [
            {"type": "file_exists", "path": "quantum-research.md"},
            {"type": "word_count", "min": 1000},
        ],
    },
    "assignee": "@(researcher)",
    "priority": "P1",
}
HUMAN: dict[str, Any] = {
    "name": "Brian",
    "preferences": {"notificationChannel": "terminal"},
    "permissions": ["approve", "assign", "configure"],
}


def stocked(ledger: Ledger) -> Programs:
    """Every kind of program but sessions, as the examples have them."""
    programs = Programs(ledger)
    programs.create("provider", "cf-gateway", PROVIDER)
    programs.create("model", "claude-balanced", MODEL)
    for name in ("web-search", "summarize"):
        programs.create("code", name, {"language": "typescript", "source": "export default () => 1"})
    programs.create("agent", "researcher", AGENT)
    programs.create("task", "task-research-quantum", TASK)
    programs.create("human", "bln", HUMAN)
    schema = {"type": "object", "required": ["qubit"]}
    programs.create("information", "quantum-schema", {"infoType": "schema", "content": schema})
    programs.create(
        "information",
        "info-quantum-basics",
        {
            "infoType": "fact",
            "content": {"qubit": "a two-level system"},
            "schema": "@(quantum-schema)",
            "sources": ["@(task-research-quantum)"],
        },
    )
    return programs


def tell_programs(ledger: Ledger) -> None:
    """Rows in every view of programs."""
    programs = stocked(ledger)
    programs.create(
        "task", "first", {"title": "First", "spec": {"successCriteria": [{"type": "contains", "text": "x"}]}}
    )
    programs.create("task", "second", {"title": "Second", "dependencies": ["first"]})
    programs.assign("researcher", "first")
    programs.start_task("second")
    programs.start_task("first")
    programs.complete_task("first", answer="x")
    programs.step_agent("researcher", "think")
    programs.save_checkpoint("researcher", {"notes": ["so far"]})
    request = programs.notify("bln", "may it go out?", asks=True, program="second", data={"to": "everybody"})
    programs.acting_as("bln").approve(request.id, reason="it reads well")
    programs.add_tags("claude-balanced", "trusted")
    programs.change("claude-balanced", {"temperature": 0.1}, reason="too lively")
    programs.create_session("talk", model="claude-balanced")
    ledger.record_turn(session="talk", query="q")
    programs.step_session("talk", "pause")
    programs.create("provider", "gone", {"providerType": "openai"})
    programs.delete("gone")
