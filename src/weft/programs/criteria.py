"""Success criteria of tasks: what they are, and whether they hold.

Judging is a pure function of a criterion and of what a port observes: files of the task's workspace, the final answer,
and what a command does. Without a path a criterion is about the final answer. `Workspace` is such a port: files below
one folder, links followed and never out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from weft.kernel.enums import CriterionType
from weft.kernel.errors import InvalidConfig, InvalidInput, Unsupported, quoted
from weft.programs.json_values import check_schema, problems_with
from weft.programs.model import CriterionVerdict

MAX_SHOWN_CHARACTERS = 2000


class CommandResult(Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is None where it was stopped."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""


class Observations(Protocol):
    """What criteria are judged by. Paths are those of the criteria: relative, inside the workspace."""

    def file_exists(self, path: str) -> bool:
        """Is there a file or folder of this name? Raises InvalidInput for a path that leads outside."""

    def read_text(self, path: str | None) -> str | None:
        """The text of a file, or without a path the final answer; None where there is none."""

    def run(self, command: str | list[str], timeout: float | None) -> CommandResult:
        """Run a command in the workspace. Raises where commands cannot be run."""


# --- what a criterion is ----------------------------------------------------------------------------------------


def checked_criteria(path: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidConfig(path, f"{quoted(value)} is no list", "give a list of criteria")
    return [_checked(f"{path}[{i}]", criterion) for i, criterion in enumerate(value)]


def _checked(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") not in FIELDS:
        raise InvalidConfig(path, f"{quoted(value)} is no criterion", f"its type is one of {', '.join(CriterionType)}")
    required, fields = FIELDS[CriterionType(value["type"])]
    for name in required:
        if name not in value:
            raise InvalidConfig(f"{path}.{name}", "is missing", f"{value['type']} needs {', '.join(required)}")
    for name, field in value.items():
        if name != "type" and name not in fields:
            near = get_close_matches(name, fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"{value['type']} knows {', '.join(fields)}"
            raise InvalidConfig(f"{path}.{name}", "is not known", hint)
        if name in fields:
            fields[name](f"{path}.{name}", field)
    if value["type"] == CriterionType.WORD_COUNT and not {"min", "max"} & value.keys():
        raise InvalidConfig(path, "has neither min nor max", "give at least one of them")
    return value


def _is(kinds: type | tuple[type, ...], words: str) -> Callable[[str, Any], None]:
    def check(path: str, value: Any) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise InvalidConfig(path, f"{quoted(value)} is not {words}", f"give {words}")

    return check


def _relative(path: str, value: Any) -> None:
    """Inside the workspace, as far as words can tell; links are followed when it is looked at."""
    if not isinstance(value, str) or not value or value.startswith("/") or "\0" in value or ".." in value.split("/"):
        raise InvalidConfig(path, f"{quoted(value)} is no path inside the workspace", "give a relative path without ..")


def _command(path: str, value: Any) -> None:
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str) and word for word in words):
        raise InvalidConfig(path, f"{quoted(value)} is no command", "give a text, or a list of texts")


def _schema(path: str, value: Any) -> None:
    if not isinstance(value, dict | bool):
        raise InvalidConfig(path, f"{quoted(value)} is no JSON Schema", "give it as an object")
    check_schema(value, path)


_number, _text = _is((int, float), "a number"), _is(str, "text")
FIELDS: dict[CriterionType, tuple[tuple[str, ...], dict[str, Callable[[str, Any], None]]]] = {
    CriterionType.FILE_EXISTS: (("path",), {"path": _relative}),
    CriterionType.WORD_COUNT: ((), {"path": _relative, "min": _is(int, "a count"), "max": _is(int, "a count")}),
    CriterionType.COMMAND: (
        ("command",),
        {"command": _command, "exitCode": _is(int, "a code"), "timeout": _number, "stdout": _text},
    ),
    CriterionType.JSON_SCHEMA: (("schema",), {"path": _relative, "schema": _schema}),
    CriterionType.CONTAINS: (("text",), {"path": _relative, "text": _text, "ignoreCase": _is(bool, "true or false")}),
}


# --- whether it holds -------------------------------------------------------------------------------------------


def judge(criteria: list[dict[str, Any]], observations: Observations) -> list[CriterionVerdict]:
    """Every criterion, in order; one that does not hold keeps none from being looked at."""
    return [_judge_criterion(i, criterion, observations) for i, criterion in enumerate(criteria)]


def _judge_criterion(number: int, criterion: dict[str, Any], observations: Observations) -> CriterionVerdict:
    kind = CriterionType(criterion["type"])
    passed, observed = JUDGES[kind](criterion, observations)
    explanation = explain(criterion, observed, passed=passed)
    return CriterionVerdict(criterion=number, type=kind, passed=passed, observed=observed, told=explanation)


def explain(criterion: dict[str, Any], observed: Any, *, passed: bool) -> str:
    """What was observed of a criterion, in words. What is recorded of a verdict is enough to make them again."""
    kind = CriterionType(criterion["type"])
    return f"{kind}: {_explanation(kind, criterion, observed, passed)}"


def _explanation(kind: CriterionType, criterion: dict[str, Any], observed: Any, passed: bool) -> str:
    where = "the final answer" if criterion.get("path") is None else repr(criterion["path"])
    if kind is CriterionType.COMMAND:
        return f"{quoted(criterion['command'])} ended with {observed['exitCode']}{'' if passed else ', not as wanted'}"
    if observed is None or kind is CriterionType.FILE_EXISTS:
        return f"{where} is {'there' if passed else 'not there'}"
    if kind is CriterionType.WORD_COUNT:
        bounds = [f"at least {criterion['min']}"] if "min" in criterion else []
        bounds += [f"at most {criterion['max']}"] if "max" in criterion else []
        return f"{where} has {observed} words, wanted: {' and '.join(bounds)}"
    if kind is CriterionType.CONTAINS:
        return f"{where} {'contains' if passed else 'does not contain'} {quoted(criterion['text'])}"
    if any(problem.startswith(NO_JSON) for problem in observed):
        return f"{where} is not valid JSON"
    return f"{where} {'fits' if passed else 'does not fit'} its schema"


Judgement = tuple[bool, Any]
"""Whether a criterion holds, and what was observed."""
NO_JSON = "not valid JSON: "


def _file_exists(criterion: dict[str, Any], observations: Observations) -> Judgement:
    exists = observations.file_exists(criterion["path"])
    return exists, exists


def _word_count(criterion: dict[str, Any], observations: Observations) -> Judgement:
    text = observations.read_text(criterion.get("path"))
    if text is None:
        return False, None
    words = len(text.split())
    low, high = criterion.get("min", 0), criterion.get("max")
    return low <= words and (high is None or words <= high), words


def _contains(criterion: dict[str, Any], observations: Observations) -> Judgement:
    text, wanted = observations.read_text(criterion.get("path")), criterion["text"]
    if text is None:
        return False, None
    contains = wanted.casefold() in text.casefold() if criterion.get("ignoreCase") else wanted in text
    return contains, contains


def _json_schema(criterion: dict[str, Any], observations: Observations) -> Judgement:
    text = observations.read_text(criterion.get("path"))
    if text is None:
        return False, None
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return False, [f"{NO_JSON}{error}"]
    problems = problems_with(value, criterion["schema"])
    return not problems, problems


def _command_result(criterion: dict[str, Any], observations: Observations) -> Judgement:
    result = observations.run(criterion["command"], criterion.get("timeout"))
    wanted, part = criterion.get("exitCode", 0), criterion.get("stdout")
    observed = {
        "exitCode": result.exit_code,
        "stdout": result.stdout[-MAX_SHOWN_CHARACTERS:],
        "stderr": result.stderr[-MAX_SHOWN_CHARACTERS:],
    }
    return result.exit_code == wanted and (part is None or part in result.stdout), observed


JUDGES: dict[CriterionType, Callable[[dict[str, Any], Observations], Judgement]] = {
    CriterionType.FILE_EXISTS: _file_exists,
    CriterionType.WORD_COUNT: _word_count,
    CriterionType.COMMAND: _command_result,
    CriterionType.JSON_SCHEMA: _json_schema,
    CriterionType.CONTAINS: _contains,
}


# --- what is there ----------------------------------------------------------------------------------------------

RunCommand = Callable[[str | list[str], Path, float | None], CommandResult]
"""Runs a command in a folder, in a sandbox that is not this layer's business."""
MAX_FILE_BYTES = 64 * 1024 * 1024


class Workspace:
    """Observes one folder. `answer` is what the task's assignee said last."""

    def __init__(self, folder: Path | None, answer: str | None = None, run: RunCommand | None = None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._answer, self._run = answer, run

    def file_exists(self, path: str) -> bool:
        return self._inside(path).exists()

    def read_text(self, path: str | None) -> str | None:
        if path is None:
            return self._answer
        file = self._inside(path)
        if not file.is_file():
            return None
        if file.stat().st_size > MAX_FILE_BYTES:
            raise InvalidInput(f"{path!r} is larger than {MAX_FILE_BYTES} bytes", "check a smaller file")
        return file.read_text(errors="replace")

    def run(self, command: str | list[str], timeout: float | None) -> CommandResult:
        if self._run is None:
            raise Unsupported(
                "this task's criteria run a command, and there is no sandbox to run it in here",
                "complete it where there is one, or give the task other criteria",
            )
        return self._run(command, self._root(), timeout)

    def _root(self) -> Path:
        if self._folder is None:
            raise InvalidInput("the task has no workspace", "name one: `--workspace FOLDER`, or in its configuration")
        if not self._folder.is_dir():
            raise InvalidInput(f"the workspace {self._folder} is no folder", "make it, or name another")
        return self._folder

    def _inside(self, path: str) -> Path:
        """The file that is really meant, links followed: one that lies outside is not looked at."""
        root = self._root()
        file = (root / path).resolve()
        if file != root and root not in file.parents:
            raise InvalidInput(
                f"{path!r} leads outside of the workspace", "give a path below it, without links out of it"
            )
        return file
