"""A running container of a real engine, acted on."""

from __future__ import annotations

import pytest

from tests.runtime.resources.docker.running import Runner
from weft.kernel.enums import HandleCapability
from weft.kernel.errors import EngineObjectMissing, EngineRefused, InvalidInput
from weft.runtime.resources.container_engine import ContainerEngine, ContainerHandle


@pytest.fixture
def handle(engine: ContainerEngine, sleeper: str) -> ContainerHandle:
    return ContainerHandle(engine, sleeper)


def test_a_command_gives_its_code_both_streams_and_its_time(handle: ContainerHandle) -> None:
    ended = handle.exec(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (ended.rc, ended.stdout, ended.stderr) == (7, "out\n", "err\n")
    assert (ended.is_truncated, ended.has_timed_out) == (False, False)
    assert ended.duration_ms >= 0


def test_a_command_has_a_folder_variables_and_a_user(handle: ContainerHandle) -> None:
    line = 'echo "$PWD $NAME"; id -u'
    ended = handle.exec(["/bin/sh", "-c", line], folder="/tmp", variables={"NAME": "a b"}, user="12:34")
    assert (ended.rc, ended.stdout) == (0, "/tmp a b\n12\n")


def test_what_a_command_prints_is_limited(handle: ContainerHandle) -> None:
    ended = handle.exec(["/bin/dd", "if=/dev/zero", "bs=1024", "count=512"], most_bytes=1000)
    assert (ended.rc, ended.stdout, ended.is_truncated) == (0, "\0" * 1000, True)


def test_a_command_is_not_waited_for_longer_than_its_time(handle: ContainerHandle) -> None:
    ended = handle.exec(["/bin/sh", "-c", "echo begun; sleep 100"], seconds=5)
    assert (ended.rc, ended.stdout, ended.has_timed_out) == (None, "begun\n", True)


def test_a_command_that_is_not_there_is_told(handle: ContainerHandle) -> None:
    assert handle.exec(["/bin/nothing"]).rc in (126, 127)
    with pytest.raises(InvalidInput):
        handle.exec([])


def test_logs_are_the_last_lines(engine: ContainerEngine, run: Runner) -> None:
    container = run.started(["/bin/sh", "-c", "echo one; echo two; echo oops >&2; sleep 1000"])
    handle = ContainerHandle(engine, container)
    assert handle.exec(["/bin/true"]).rc == 0, "the container has printed by then"
    logs = handle.logs()
    assert (logs.stdout, logs.stderr) == (b"one\ntwo\n", b"oops\n")
    assert handle.logs(lines=1).stdout in (b"", b"two\n")
    assert handle.logs(most_bytes=3).stdout == b"one"

    everything = set(HandleCapability)
    assert set(handle.capabilities()) == everything
    assert handle.kill() is True
    engine.call("POST", f"/containers/{container}/wait", asked="wait", query={"interval": "20ms"})
    assert handle.kill() is False
    assert handle.capabilities() == (HandleCapability.LOGS,)
    with pytest.raises(EngineRefused):
        handle.exec(["/bin/true"])


def test_a_terminal_is_attached_to_until_it_ends_or_the_time_is_over(engine: ContainerEngine, run: Runner) -> None:
    container = run.started(["/bin/sh", "-c", "while :; do echo tick; sleep 0.1; done"])
    handle = ContainerHandle(engine, container)
    heard = handle.attach(seconds=3)
    assert "tick" in heard.stdout
    assert heard.has_ended is False


def test_a_container_that_is_not_there_is_told(engine: ContainerEngine) -> None:
    with pytest.raises(EngineObjectMissing):
        ContainerHandle(engine, "gone").exec(["/bin/true"])
    with pytest.raises(EngineObjectMissing):
        ContainerHandle(engine, "gone").logs()


def test_signals_are_those_that_are_meant_for_containers(handle: ContainerHandle) -> None:
    with pytest.raises(InvalidInput):
        handle.kill("KILL&x=1")
