"""A lease names its process so that another one can tell whether it still lives."""

import os
import subprocess
import sys

import pytest

from weft.store.replicas import is_dead, owner_words, process_owner

SAY_OWNER = "from weft.store.replicas import process_owner; print(process_owner(), flush=True); input()"


def test_a_living_process_is_not_dead() -> None:
    assert not is_dead(process_owner())
    assert process_owner() == process_owner()


def test_an_ended_process_is_dead_even_before_its_parent_has_taken_notice() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SAY_OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    assert owner != process_owner()
    assert not is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner)
    child.communicate()
    assert is_dead(owner)


def test_a_process_with_the_same_number_and_another_beginning_is_dead() -> None:
    machine, pid, start = process_owner().rsplit("/", 2)
    assert is_dead(f"{machine}/{pid}/{int(start) + 1}")


@pytest.mark.parametrize("owner", ["", "somebody", "a/b", "elsewhere/1/1", "/1/1", "elsewhere//"])
def test_of_an_owner_elsewhere_nothing_is_certain(owner: str) -> None:
    assert not is_dead(owner)


def test_an_owner_is_named_by_its_process_and_its_machine() -> None:
    assert owner_words(process_owner()) == f"process {os.getpid()} of {os.uname().nodename}"
    assert owner_words("boot.4026531836.home.example/12/345") == "process 12 of home.example"


@pytest.mark.parametrize("owner", ["nobody", "another broker", "/1/1", "a/b/c"])
def test_an_owner_that_names_no_process_is_shown_as_it_is(owner: str) -> None:
    assert owner_words(owner) == owner
