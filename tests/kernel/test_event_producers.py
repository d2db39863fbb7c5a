"""Every kind of event has a module that writes it, and the page of events names it."""

import ast
from pathlib import Path

import pytest

from scripts.event_producers import classes_written, event_producers
from tests.sources import LOAD, parsed
from weft.kernel.events import Substitution

pytestmark = LOAD
PAGE = Path(__file__).parents[2] / "docs" / "events.md"


@pytest.mark.slow("looks through each module that may write an event")
def test_every_kind_of_event_is_written_somewhere() -> None:
    assert [name for name, modules in event_producers(parsed).items() if not modules] == []


def test_the_page_names_the_modules_that_write_a_kind() -> None:
    sections = dict(text.split("`\n", 1) for text in PAGE.read_text().split("\n### `")[1:])
    for name, modules in event_producers(parsed).items():
        written = [line for line in sections[name].splitlines() if line.startswith("Written by ")]
        assert written == [f"Written by {', '.join(f'`{module}`' for module in modules)}."]


@pytest.mark.parametrize(
    "source",
    [
        "stream.add(Substitution, reason=reason)",
        "self._add(Substitution)",
        "writer.step(row, 'verb', Substitution)",
        "stream.add(Substitution if late else other)",
        "kind = Substitution if late else other\nstream.add(kind)",
        "append.add_event(Substitution(stream=name))",
        "from weft.kernel import dag_events as dag\nstream.add(dag.Substitution)",
    ],
)
def test_a_module_writes_the_events_that_it_adds_or_makes(source: str) -> None:
    tree = ast.parse(f"from weft.kernel.events import Substitution\n{source}")
    assert set(classes_written(tree)) == {Substitution.__name__}


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(event, Substitution)",
        "kinds = {Substitution: 1}",
        "def read(event: Substitution) -> None: ...",
        "messages.Substitution()",
    ],
)
def test_a_module_that_only_tells_events_apart_writes_none(source: str) -> None:
    assert not set(classes_written(ast.parse(f"from weft.kernel.events import Substitution\n{source}")))
