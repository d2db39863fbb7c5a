"""docs/http.md: its table of routes is what is declared, and its examples are run against `weft serve`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.generate_docs import HTTP_PAGE, http_page
from tests.surfaces.server.site import open_site
from weft.surfaces.server.problems import STATUS_OF
from weft.surfaces.server.route_table import BASE

EXAMPLE = re.compile(r"^<!-- run: shell -->\n+```bash\n(.*?)^```$", re.M | re.S)
PORT = "8420"
ANSWERS = "weft-answer"
READY = "for _ in $(seq 600); do curl -sf http://127.0.0.1:8420/health >/dev/null && break; sleep 0.1; done\n"


def test_the_page_has_every_route_as_it_is_declared() -> None:
    assert HTTP_PAGE.read_text() == http_page(), "run `make docs`"


def test_the_page_names_every_endpoint_that_calls_no_verb() -> None:
    page = HTTP_PAGE.read_text()
    with open_site() as site:
        paths = [(one.method, one.path.removeprefix(BASE)) for one in site.application.endpoints]
    assert [path for path in paths if f"| `{' '.join(path)}`" not in page] == []


def test_the_page_explains_every_status_of_an_error() -> None:
    told = {
        int(number) for row in re.findall(r"^\| ([\d, ]+) \|", HTTP_PAGE.read_text(), re.M) for number in row.split(",")
    }
    assert {status for status in STATUS_OF.values() if status not in (402, 501, 502)} <= told


@pytest.mark.slow("it starts a server and some commands")
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    port = _free_port()
    blocks = [block.replace(PORT, port) for block in EXAMPLE.findall(HTTP_PAGE.read_text())]
    blocks[0] = blocks[0].replace("weft serve", f"weft serve --port {port} --no-broker") + READY.replace(PORT, port)
    script = ["set -eu", "trap 'kill %1; wait' EXIT"]
    for number, block in enumerate(blocks):
        script += [f"echo {ANSWERS} {number}", block, "echo"]
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WEFT_LEDGER": str(tmp_path / "ledger.db"),
        "USER": "tester",
    }
    command = ["bash", "-c", "\n".join(script)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    answers = re.split(rf"^{ANSWERS} \d+$", done.stdout, flags=re.M)[1:]
    assert json.loads(answers[1])["items"][0]["label"] == "main"
    assert '"what is a qubit?"' in answers[2]
    assert json.loads(answers[4])["items"][0]["label"] == "main"
    assert json.loads(answers[5])["code"] == "not_found"
    made = [json.loads(line) for line in answers[6].replace("}{", "}\n{").split("\n") if line]
    assert len(made) == 2
    assert made[0] == made[1]
    assert answers[7].strip().startswith("304")


def _free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])
