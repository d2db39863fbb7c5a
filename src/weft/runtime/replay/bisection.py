"""Finds the first turn after which a check fails, by halving what lies between a good and a bad one.

A `Bisection` is a pure value of what was found out so far: it says which turn is checked next, and when it is done.
Turns that cannot be checked are skipped: their neighbours are checked instead. Where only skipped ones are left, any of
them may be the first bad one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from weft.kernel.errors import NotApplicable


class CheckVerdict(StrEnum):
    """What a check found of a turn: good, bad, or that it cannot be checked."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


class BisectStep(Struct, frozen=True, kw_only=True):
    """One check: of which turn, counted from zero in its range, and what it found."""

    place: int
    turn: str
    verdict: CheckVerdict
    remark: str | None = None


class Bisection(Struct, frozen=True, kw_only=True):
    """The last place that is known to be good, the first that is known to be bad, and those between that were
    skipped."""

    good: int
    bad: int
    skipped: frozenset[int] = frozenset()

    @property
    def open_places(self) -> list[int]:
        """Places between that were not checked."""
        return [place for place in range(self.good + 1, self.bad) if place not in self.skipped]

    @property
    def candidates(self) -> range:
        """The places that the first bad one is among."""
        return range(self.good + 1, self.bad + 1)

    def next_place(self) -> int | None:
        """The open place nearest to the middle; None where none is left."""
        middle = (self.good + self.bad) // 2
        return min(self.open_places, key=lambda place: (abs(place - middle), place), default=None)

    def after(self, place: int, verdict: CheckVerdict) -> Bisection:
        match verdict:
            case CheckVerdict.GOOD:
                return Bisection(good=place, bad=self.bad, skipped=self.skipped)
            case CheckVerdict.BAD:
                return Bisection(good=self.good, bad=place, skipped=self.skipped)
            case CheckVerdict.SKIP:
                return Bisection(good=self.good, bad=self.bad, skipped=self.skipped | {place})


class BisectResult(Struct, frozen=True, kw_only=True):
    """What was found: the first bad turn, or where turns were skipped all that it may be."""

    first_bad: str | None
    last_good: str
    candidates: tuple[str, ...]
    turns: int
    """So many turns were searched."""
    steps: tuple[BisectStep, ...]


Checked = tuple[CheckVerdict, str | None]
"""What a check found, and a remark about it."""
Check = Callable[[int], Awaitable[Checked]]
"""Checks the thread up to and with the turn at a place."""
OnStep = Callable[[BisectStep, int], None]
"""Hears of every check, and how many turns are left to be checked."""


async def bisect(turns: Sequence[str], check: Check, on_step: OnStep | None = None) -> BisectResult:
    """The first bad one of these turns, of which the first must be good and the last bad: both are checked before
    anything else. Raises NotApplicable where they are not. What a check raises ends the search."""
    if len(turns) < 2:
        raise NotApplicable("there is only one turn to search", "name a thread of at least two turns")
    bisection, steps = Bisection(good=0, bad=len(turns) - 1), list[BisectStep]()

    async def checked(place: int) -> CheckVerdict:
        verdict, remark = await check(place)
        steps.append(BisectStep(place=place, turn=turns[place], verdict=verdict, remark=remark))
        return verdict

    def report_step() -> None:
        if on_step is not None:
            on_step(steps[-1], len(bisection.open_places))

    for end, wanted in ((0, CheckVerdict.GOOD), (len(turns) - 1, CheckVerdict.BAD)):
        verdict = await checked(end)
        report_step()
        _ensure(verdict, wanted, turns[end])
    while (place := bisection.next_place()) is not None:
        bisection = bisection.after(place, await checked(place))
        report_step()
    candidates = tuple(turns[place] for place in bisection.candidates)
    return BisectResult(
        first_bad=candidates[0] if len(candidates) == 1 else None,
        last_good=turns[bisection.good],
        candidates=candidates,
        turns=len(turns),
        steps=tuple(steps),
    )


def _ensure(verdict: CheckVerdict, wanted: CheckVerdict, turn: str) -> None:
    if verdict is wanted:
        return
    which, already = ("first", "already") if wanted is CheckVerdict.GOOD else ("last", "still")
    if verdict is CheckVerdict.SKIP:
        fault = f"the check cannot say whether the {which} turn, {turn}, is {wanted}"
    else:
        fault = f"the {which} turn, {turn}, is {already} {verdict}: it must be {wanted}"
    raise NotApplicable(fault, f"name another turn that is {wanted} with --{wanted}, or look at the check")
