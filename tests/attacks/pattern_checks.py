"""Which regular expressions of the package may take more than linear time, told from their structure.

A pattern is *suspect* where a failing match may be tried in more ways than there are characters:
- nested: an unbounded repeat inside an unbounded repeat;
- adjacent: two unbounded repeats that can follow each other directly, or over what both of them match, and share a
  character, so that a run of it is split between them in many ways;
- restarted: it is searched for, and an unbounded repeat that something must follow matches what the pattern begins
  with, so that each beginning runs on over all the others.
Possessive repeats and atomic groups give nothing back: they are neither nested nor adjacent, but may be restarted.
"""

import ast
import importlib
import re
from re import _constants as codes  # type: ignore[attr-defined, unused-ignore]
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from msgspec import Struct

from tests.sources import Module, shipped

SEARCHES = {"search", "findall", "finditer", "sub", "subn", "split"}
CALLS = SEARCHES | {"compile", "match", "fullmatch"}
SPOKEN = re.compile(r"\bre\.[a-z]+\(|\.(?:search|findall|finditer|subn?|split)\b")
"""In a module that has to do with patterns."""
UNBOUNDED = 1000
"""A repeat of more than so many counts as one without an end."""
ALL = frozenset(range(0x180)) | frozenset((0x2028, 0xD800, 0x4E00))
"""Characters that stand for all others: Latin, and one of each further kind that patterns name."""

CATEGORIES = {
    category: frozenset(code for code in ALL if re.match(sign, chr(code)))
    for category, sign in {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }.items()
}


class Use(Struct, frozen=True):
    """A pattern as the source spells it, and whether it is searched for (or only matched from a place)."""

    module: str
    pattern: str | bytes
    flags: int
    is_searched: bool

    @property
    def name(self) -> str:
        shown = self.pattern.decode("latin-1") if isinstance(self.pattern, bytes) else self.pattern
        return f"{self.module}: {shown}"


class Run(Struct):
    """An unbounded repeat: what it matches, and whether something that may fail comes after it."""

    letters: frozenset[int]
    is_last: bool = True
    is_possessive: bool = False


def charset(op: Any, value: Any, flags: int) -> frozenset[int]:
    if op is codes.LITERAL:
        return _folded(frozenset((value,)), flags)
    if op is codes.NOT_LITERAL:
        return ALL - _folded(frozenset((value,)), flags)
    if op is codes.ANY:
        return ALL if flags & re.DOTALL else ALL - {10}
    if op is codes.IN:
        negated = bool(value) and value[0][0] is codes.NEGATE
        letters: frozenset[int] = frozenset()
        for inner, what in value[negated:]:
            if inner is codes.RANGE:
                letters |= frozenset(code for code in ALL if what[0] <= code <= what[1])
            elif inner is codes.CATEGORY:
                letters |= CATEGORIES[what]
            else:
                letters |= {what}
        letters = _folded(letters, flags)
        return ALL - letters if negated else letters
    return frozenset()


def _folded(letters: frozenset[int], flags: int) -> frozenset[int]:
    if not flags & re.IGNORECASE:
        return letters
    others = [other for code in letters for other in (chr(code).lower(), chr(code).upper()) if len(other) == 1]
    return letters | frozenset(map(ord, others))


def letters_of(items: Any, flags: int) -> frozenset[int]:
    """Every character that may be matched somewhere in a part of a pattern."""
    found: frozenset[int] = frozenset()
    for op, value in items:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            found |= letters_of(value[2], flags)
        elif op is codes.SUBPATTERN:
            found |= letters_of(value[3], flags | value[1])
        elif op is codes.BRANCH:
            found |= frozenset().union(*(letters_of(branch, flags) for branch in value[1]))
        elif op is codes.ATOMIC_GROUP:
            found |= letters_of(value, flags)
        elif op is codes.GROUPREF:
            found |= ALL
        else:
            found |= charset(op, value, flags)
    return found


def first_of(items: Any, flags: int) -> tuple[frozenset[int], bool]:
    """What a part of a pattern may begin with, and whether it may match nothing."""
    found: frozenset[int] = frozenset()
    for op, value in items:
        letters, is_empty = _first_of_one(op, value, flags)
        found |= letters
        if not is_empty:
            return found, False
    return found, True


def _first_of_one(op: Any, value: Any, flags: int) -> tuple[frozenset[int], bool]:
    if op in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
        return frozenset(), True
    if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        letters, is_empty = first_of(value[2], flags)
        return letters, is_empty or value[0] == 0
    if op is codes.SUBPATTERN:
        return first_of(value[3], flags | value[1])
    if op is codes.ATOMIC_GROUP:
        return first_of(value, flags)
    if op is codes.BRANCH:
        branches = [first_of(branch, flags) for branch in value[1]]
        return frozenset().union(*(letters for letters, _ in branches)), any(empty for _, empty in branches)
    if op is codes.GROUPREF:
        return ALL, True
    return charset(op, value, flags), False


class Checker:
    """One walk over a pattern's tree."""

    def __init__(self, use: Use) -> None:
        self._tree = parser.parse(use.pattern, use.flags)
        self._flags = self._tree.state.flags
        self._is_searched = use.is_searched
        self._runs: list[Run] = []
        self.reasons: set[str] = set()

    def check(self) -> set[str]:
        first, _ = first_of(self._tree, self._flags)
        self._walk(self._tree, self._flags, [], is_inside=False)
        if self._is_searched and any(not run.is_last and run.letters & first for run in self._runs):
            self.reasons.add("restarted")
        return self.reasons

    def _walk(self, items: Any, flags: int, open_runs: list[Run], is_inside: bool) -> list[Run]:
        """`open_runs` can reach to right before `items`; those that can reach to right behind them are given back."""
        for op, value in items:
            open_runs = self._step(op, value, flags, open_runs, is_inside)
        return open_runs

    def _step(self, op: Any, value: Any, flags: int, open_runs: list[Run], is_inside: bool) -> list[Run]:
        if op in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            return self._repeat(op, value, flags, open_runs, is_inside)
        if op is codes.SUBPATTERN:
            return self._walk(value[3], flags | value[1], open_runs, is_inside)
        if op is codes.ATOMIC_GROUP:
            inner = self._walk(value, flags, open_runs, is_inside)
            for run in inner:
                run.is_possessive = True
            return inner
        if op is codes.BRANCH:
            ends = [self._walk(branch, flags, list(open_runs), is_inside) for branch in value[1]]
            return [run for end in ends for run in end]
        if op in (codes.ASSERT, codes.ASSERT_NOT):
            self._walk(value[1], flags, [], is_inside)
            for run in open_runs:
                run.is_last = False
            return open_runs
        if op is codes.AT:
            for run in open_runs:
                run.is_last = False
            return open_runs
        letters = ALL if op is codes.GROUPREF else charset(op, value, flags)
        for run in self._runs:
            run.is_last = False
        return [run for run in open_runs if run.letters & letters]

    def _repeat(self, op: Any, value: Any, flags: int, open_runs: list[Run], is_inside: bool) -> list[Run]:
        least, most, items = value
        is_unbounded = most is codes.MAXREPEAT or most > UNBOUNDED
        is_possessive = op is codes.POSSESSIVE_REPEAT
        if not is_unbounded:
            after = self._walk(items, flags, list(open_runs), is_inside)
            return after + (open_runs if least == 0 else [])
        letters = letters_of(items, flags)
        if is_inside and not is_possessive:
            self.reasons.add("nested")
        before = len(self._runs)
        self._walk(items, flags, [], is_inside=not is_possessive)
        for run in self._runs[:before]:
            if least > 0:
                run.is_last = False
        if any(not run.is_possessive and run.letters & letters for run in open_runs):
            self.reasons.add("adjacent")
        made = Run(letters, is_possessive=is_possessive)
        self._runs.append(made)
        return [made, *(open_runs if least == 0 else [run for run in open_runs if run.letters & letters])]


def reasons(use: Use) -> set[str]:
    return Checker(use).check()


def uses() -> tuple[list[Use], list[str]]:
    """Every pattern of the package; and the calls whose pattern is made at run time."""
    modules = [module for module in shipped() if SPOKEN.search(module.source)]
    searched = {module.name: _searched(module) for module in modules}
    anywhere = set().union(*searched.values())
    found: list[Use] = []
    made: list[str] = []
    for module in modules:
        name, calls = module.name, [node for node in module.nodes_of(ast.Call) if _is_call(node)]
        if calls:
            scope = vars(importlib.import_module(name))
            parents = {child: node for node in module.nodes for child in ast.iter_child_nodes(node)}
            for call in calls:
                try:
                    arguments = [eval(compile(ast.Expression(each), name, "eval"), scope) for each in _arguments(call)]
                except NameError:
                    made.append(f"{name}: {ast.unparse(call.args[0])}")
                    continue
                flags = arguments[1] if len(arguments) > 1 else 0
                found.append(Use(name, arguments[0], int(flags), _is_searched(call, parents, searched[name], anywhere)))
    return found, made


def _is_call(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in CALLS
    )


def _arguments(call: Any) -> list[ast.expr]:
    """The pattern, and the flags if there are any: the first follows the text that other calls than compile take."""
    flags = next((word.value for word in call.keywords if word.arg == "flags"), None)
    place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
    if flags is None and len(call.args) > place:
        flags = call.args[place]
    return [call.args[0], *([flags] if flags is not None else [])]


def _searched(module: Module) -> set[str]:
    """The names on which a module calls something that looks for a match anywhere."""
    owners = [node.value for node in module.nodes_of(ast.Attribute) if node.attr in SEARCHES]
    names = [node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in owners]
    return {name for name in names if name}


def _is_searched(call: Any, parents: dict[ast.AST, ast.AST], here: set[str], anywhere: set[str]) -> bool:
    """Private names are used in their own module. What cannot be told counts as searched for."""
    if call.func.attr != "compile":
        return call.func.attr in SEARCHES
    above = parents[call]
    if isinstance(above, ast.Attribute):
        return above.attr in SEARCHES
    while not isinstance(above, ast.Assign | ast.AnnAssign) and above in parents:
        above = parents[above]
    targets = (
        above.targets if isinstance(above, ast.Assign) else [above.target] if isinstance(above, ast.AnnAssign) else []
    )
    is_named = isinstance(above, ast.Assign | ast.AnnAssign)
    names = [node.id for target in targets for node in ast.walk(target) if is_named and isinstance(node, ast.Name)]
    return not names or any(name in (here if name.startswith("_") else anywhere) for name in names)
