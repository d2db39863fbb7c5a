"""A command makes AGENTS.md a link to what it cannot read itself: rules are read outside of the sandbox, and are sent
with every request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
)
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell

ON_DISK = True  # no sandbox takes a workspace in memory
CANARY = "canary-of-rules-41b7"


@pytest.mark.parametrize(
    "script", ["x=nv; ln -s .e$x AGENTS.md", "x=ocker; mv .d$x renamed; ln -s renamed/config.json AGENTS.md"]
)
def test_no_file_of_secrets_becomes_the_rules_of_a_folder(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    script: str,
) -> None:
    (project / ".env").write_text(CANARY)
    (project / ".docker").mkdir()
    (project / ".docker/config.json").write_text(CANARY)
    assert weft("trust", ".").code == 0
    assert begin(weft, running(script)) == []
    with serving(calling("list", path="."), chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft("send", "--session", "talk", "Begin")
    assert CANARY not in repr(server.received)
    assert "hidden from commands" in sent.err
