"""What processes that run tests tell the one that started them. A plugin.

pytest-xdist sends six messages of every test, each written and read value by value: together they take longer than many
a test. Of a test that passes two are enough, that it passed and that the next may begin, where nobody asks for more.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sizes import PROVING

INTERACTOR = "WorkerInteractor"
"""The plugin of pytest-xdist that sends them. It has no other name: its module is run from its text."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") or is_more_asked_for(config):
        return
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == INTERACTOR:
            config.pluginmanager.unregister(plugin)
            plugin.__class__ = type(INTERACTOR, (BriefMessages, type(plugin)), {})
            config.pluginmanager.register(plugin)


def is_more_asked_for(config: pytest.Config) -> bool:
    """A list of all tests, their durations, or a report of them all. A proof tells what they counted."""
    options = config.option
    return PROVING or options.verbose > 0 or options.durations is not None or options.xmlpath is not None


class BriefMessages:
    """Before the interactor among the bases of its class."""

    @pytest.hookimpl
    def pytest_runtest_logstart(self) -> None:
        """Nobody shows it."""

    @pytest.hookimpl
    def pytest_runtest_logfinish(self) -> None:
        """Nobody shows it."""

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        if report.passed:
            report.keywords, report.user_properties = {}, []
        sender: Any = super()
        sender.pytest_runtest_logreport(report)
