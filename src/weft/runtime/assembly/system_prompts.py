"""The system prompt of a request, and behind it the rules of the workspace; and what a manager is told of its workers.

The prompt is the agent's own, the one in effect, or what an embedded model is told by default. The
rules are the file AGENTS.md of a folder that a person trusted, in the words that the person saw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from weft.kernel.enums import MessageRole, MessageSource
from weft.kernel.errors import InvalidInput, LimitExceeded
from weft.kernel.foreign_input import KIB, ReadLimits
from weft.ledger.api import WorkerState
from weft.ledger.model import Message, NewMessage, Part, TextPart
from weft.runtime.sandbox.hidden_places import HiddenFiles, SecretFiles
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.store.replicas import SeenRules, rules_digest

# --- The system prompt of a request: the agent's own, or the one in effect, or what an embedded model is told by
# default; behind it the rules of the workspace.

RULES_FIELD = "rules"
"""In the context of a system message: the files of the workspace whose rules are its last part."""
DEFAULT_PROMPT = "default_of_embedded_model"
"""In the metadata of a system message: nobody gave it, and no other model is sent it."""


class WorkspaceRules(Struct, frozen=True, kw_only=True):
    """The rules of a workspace that its agents are told. `path` is relative to the workspace, `digest` that of the
    file."""

    path: str
    digest: str
    text: str

    @property
    def prompt_text(self) -> str:
        """Without the path: where a link leads is chosen by whoever makes it, also an agent."""
        return f"Rules of this workspace, from its file {RULES_FILE}:\n\n{self.text}"


class SystemPrompt(Struct, frozen=True, kw_only=True):
    """What a turn's requests are to begin with."""

    text: str | None = None
    """Replaces the system prompt so far; None leaves it."""
    default: str | None = None
    """What this model is told where there is no prompt at all; no other model is sent it."""
    persona: str | None = None
    """Whose prompt it is."""
    rules: WorkspaceRules | None = None
    """Stand behind the prompt, as a part of their own. None: there are none, and earlier ones hold no longer."""


class _PromptParts(Struct, frozen=True):
    """A system message as what it is made of."""

    text: str | None = None
    rules: str | None = None
    is_default: bool = False


def changed_prompt(prompt: SystemPrompt, history: Sequence[Message | NewMessage]) -> tuple[list[NewMessage], bool]:
    """The system prompt that the turn begins with, unless it is in effect already; and whether the history's own is
    left out."""
    in_effect = history[0] if history and history[0].role == "system" else None
    present = _PromptParts() if in_effect is None else _parts_of(in_effect)
    wanted = _wanted_parts(prompt, present)
    if wanted == present:
        return [], False
    return _message_of(prompt, wanted), in_effect is not None


def _wanted_parts(prompt: SystemPrompt, present: _PromptParts) -> _PromptParts:
    rules = None if prompt.rules is None else prompt.rules.prompt_text
    if prompt.text is not None:
        return _PromptParts(prompt.text, rules)
    if present.text is not None and (not present.is_default or prompt.default is not None):
        return _PromptParts(present.text, rules, present.is_default)
    return _PromptParts(prompt.default, rules, prompt.default is not None)


def _parts_of(message: Message | NewMessage) -> _PromptParts:
    content = message.content
    texts = [content] if isinstance(content, str) else [part.text for part in _text_parts(content)]
    is_default = is_default_prompt(message)
    if texts and isinstance(message.context, dict) and RULES_FIELD in message.context:
        return _PromptParts("\n\n".join(map(str, texts[:-1])) or None, str(texts[-1]), is_default)
    return _PromptParts("\n\n".join(map(str, texts)), None, is_default)


def _text_parts(content: Any) -> list[TextPart]:
    return [part for part in content if isinstance(part, TextPart)]


def _message_of(prompt: SystemPrompt, parts: _PromptParts) -> list[NewMessage]:
    texts = [text for text in (parts.text, parts.rules) if text is not None]
    if not texts:
        return []
    context: dict[str, Any] = {}
    if prompt.persona is not None and not (parts.is_default and prompt.rules is None):
        context["persona"] = prompt.persona
    if prompt.rules is not None:
        context[RULES_FIELD] = [{"path": prompt.rules.path, "digest": prompt.rules.digest}]
    content: str | tuple[Part, ...] = texts[0] if len(texts) == 1 else tuple(map(TextPart, texts))
    metadata = {DEFAULT_PROMPT: True} if parts.is_default else None
    return [NewMessage(role=MessageRole.SYSTEM, content=content, context=context or None, metadata=metadata)]


def is_default_prompt(message: Message | NewMessage | None) -> bool:
    """Whether this is the prompt that the embedded model alone is given."""
    metadata = None if message is None else message.metadata
    return isinstance(metadata, dict) and DEFAULT_PROMPT in metadata


# --- The rules of a workspace: the file AGENTS.md of a folder that a person trusted.

RULES_FILE = "AGENTS.md"
RULES_LIMITS = ReadLimits(held_bytes=64 * KIB, advice=f"shorten {RULES_FILE}: it is sent with every request")
SeenRulesOf = Callable[[str], SeenRules | None]
"""What the person has seen of the rules of a folder; None where they do not trust it."""
RulesOf = Callable[[str], WorkspaceRules | None]
"""The rules of a folder, by its path."""
LooksForHidden = Callable[[], tuple[SecretFiles, Path | None]]
"""Which files the person has hidden from commands, and where it is noted what was."""


class ChangedRules(Struct, frozen=True, kw_only=True):
    """The rules of a folder that are not those that the person saw when they trusted it."""

    seen: SeenRules
    present: str | None
    """What stands there; None: nothing, or what cannot be taken."""
    problem: str = ""
    """Why what stands there cannot be taken; empty where it can."""

    @property
    def digest(self) -> str:
        return rules_digest(self.present)

    @property
    def is_refused(self) -> bool:
        """Whether the person said no to them."""
        return not self.problem and self.seen.refused == self.digest

    @property
    def difference(self) -> str:
        """The lines that differ. Whoever shows them escapes what a terminal would obey."""
        texts = (self.seen.text, self.present)
        # A last line break that both have is no line of its own; one that only one of them has is a difference.
        ends_alike = all(text is None or text.endswith("\n") for text in texts)
        before, after = ([] if text is None else (text[:-1] if ends_alike else text).split("\n") for text in texts)
        return "\n".join(unified_diff(before, after, "seen", "now", n=2, lineterm=""))


def read_rules(
    folder: str,
    seen_rules: SeenRulesOf,
    hidden_files: LooksForHidden | None = None,
    on_change: Callable[[ChangedRules], None] | None = None,
) -> WorkspaceRules | None:
    """The rules of this folder that its agents are told; None where it has none, or is not trusted. They are the words
    that the person saw: where others stand there now, which an agent may have written, `on_change` is called. So it is
    where no rules can be read there: an agent can make a pipe or a folder of the file, and messages are answered."""
    seen = seen_rules(folder)
    if seen is None:
        return None
    present = _present_rules(folder, seen, hidden_files)
    if not isinstance(present, ChangedRules):
        return present
    if on_change is not None:
        on_change(present)
    return None if seen.text is None else WorkspaceRules(path=RULES_FILE, digest=seen.digest, text=seen.text)


def changed_rules(folder: str, seen: SeenRules, hidden_files: LooksForHidden | None = None) -> ChangedRules | None:
    """How what stands in a trusted folder differs from what the person saw there. None: it does not."""
    present = _present_rules(folder, seen, hidden_files)
    return present if isinstance(present, ChangedRules) else None


def _present_rules(
    folder: str, seen: SeenRules, hidden_files: LooksForHidden | None
) -> WorkspaceRules | ChangedRules | None:
    """The rules that stand there, where the person saw them so."""
    try:
        present = load_rules(folder, hidden_files)
    except InvalidInput as error:
        return ChangedRules(seen=seen, present=None, problem=str(error))
    text = None if present is None else present.text
    return present if text == seen.text else ChangedRules(seen=seen, present=text)


def load_rules(folder: str, hidden_files: LooksForHidden | None = None) -> WorkspaceRules | None:
    """What stands in the file of a folder, whoever wrote it; None where nothing does. Raises InvalidInput where the
    file cannot be taken. The rules are no hidden file, for a command could make a link to one."""
    workspace = WorkspaceFolder(Path(folder), limits=RULES_LIMITS)
    try:
        path = workspace.resolve(RULES_FILE)
        file = workspace.read_if_there(path.text)
    except ToolFailure as failure:
        raise InvalidInput(
            f"the rules of workspace {folder} cannot be read: {failure.message}", f"put a plain {RULES_FILE} there"
        ) from failure
    except LimitExceeded as error:
        raise InvalidInput(f"the rules of workspace {folder} are too long: {error}", RULES_LIMITS.advice) from None
    if file is None:
        return None
    secrets, covered_places = (SecretFiles(), None) if hidden_files is None else hidden_files()
    if HiddenFiles(workspace.root, secrets, covered_places).is_hidden(path.text):
        raise InvalidInput(
            f"the rules of workspace {folder} are not read: {RULES_FILE} leads to {path.text!r}, which is hidden from "
            "commands",
            f"put a plain {RULES_FILE} there",
        )
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"the rules of workspace {folder} are no text: {RULES_FILE} is not UTF-8", "save it as UTF-8"
        ) from None
    return WorkspaceRules(path=path.text, digest=file.digest, text=text) if text.strip() else None


# --- What a manager is told of its workers with its newest message, behind all history.

WORKERS_FIELD = "workers"
"""The field of the message's context that holds the same as a list."""
MOST_TOLD = 32
"""So many workers are told of, those that were spawned last."""
TASK_CHARACTERS = 120


def workers_note(workers: Sequence[WorkerState]) -> NewMessage:
    """A line about each worker: its name, how far it is, and what it was told to do."""
    newest = workers[-MOST_TOLD:]
    more = len(workers) - len(newest)
    lines = ["Your workers:", *([f"- {more} earlier ones"] if more else []), *map(_worker_line, newest)]
    context = {WORKERS_FIELD: to_builtins(list(newest))}
    return NewMessage(role=MessageRole.USER, source=MessageSource.EVENT, content="\n".join(lines), context=context)


def _worker_line(worker: WorkerState) -> str:
    answer = ", an answer waits for you" if worker.has_answer else ""
    task = " ".join(worker.task.split())
    shown = task if len(task) <= TASK_CHARACTERS else f"{task[: TASK_CHARACTERS - 1]}…"
    return f"- {worker.label}: {worker.status}{answer}: {shown}"
