"""The layers of a turn as programs, sessions and the turn before it say them, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.invoking import VARIABLES, as_tester, run, stock
from tests.runtime.scripted import chat
from weft.exchange.sync import pull
from weft.kernel.authority import rights
from weft.kernel.errors import InvalidConfig, InvalidInput, NotApplicable, NotFound
from weft.ledger.api import Ledger
from weft.programs import Programs
from weft.runtime.assembly.configuration_layers import NO_OVERRIDES, MessageOverrides, parse_overrides
from weft.runtime.assembly.turn_configuration import LayerReader, TurnConfiguration, TurnRequest
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ModelParameters


class Desk:
    """A ledger with models, and the configuration of turns in it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.programs, self._inference = ledger, Programs(ledger), Inference()

    def read(
        self,
        session: str | None,
        overrides: MessageOverrides = NO_OVERRIDES,
        context: ExecutionContext | None = None,
        **more: Any,
    ) -> TurnConfiguration:
        variable = {**VARIABLES, "HEAT": "0.7"}.get
        reader = LayerReader(self.programs, self._inference, variable, context or as_tester())
        return reader.configuration(TurnRequest(session=session, overrides=overrides, **more))

    def turn(self, session: str, overrides: MessageOverrides = NO_OVERRIDES) -> str:
        """A turn in a session, recorded with its configuration."""
        fields = self.read(session, overrides).turn_fields()
        with self.ledger.begin_turn(session=session, **fields) as turn:
            turn.message("Hello")
            turn.response("Hello there")
        return turn.id


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with weft.open(tmp_path / "ledger") as ledger:
        opened = Desk(ledger)
        stock(opened.programs, "http://127.0.0.1:9")
        yield opened


def sources(configuration: TurnConfiguration) -> dict[str, tuple[Any, str, str]]:
    values = configuration.effective.values
    return {key: (one.value, str(one.layer), one.source) for key, one in values.items()}


def test_each_layer_overrides_those_below_it(desk: Desk) -> None:
    defaults = {"model": "fast", "temperature": 0.2, "situation": "coding", "thinking": "low"}
    permissions = {"tools": {"allow": ["Read", "Bash"]}, "credentials": ["one", "two"], "sandbox": {"network": False}}
    desk.programs.create(
        "agent", "ada", {"soul": "Be brief", "defaultModelConfig": defaults, "permissions": permissions}
    )
    config = {
        "defaultModelConfig": {"maxTokens": 30},
        "permissions": {"tools": {"allow": ["B*"], "deny": ["Bash(rm *)"]}, "sandbox": {"files": "read-only"}},
    }
    desk.programs.create_session("talk", owner="ada", config=config)
    own = desk.read("talk")
    assert sources(own) == {
        "temperature": (0.2, "persona", "ada"),
        "max_tokens": (30, "session", "talk"),
        "model": ("@(fast)", "persona", "ada"),
        "situation": ("coding", "persona", "ada"),
        "thinking": ("low", "persona", "ada"),
    }
    assert (own.persona_name, own.system_prompt) == ("ada", "Be brief")
    assert own.effective.request_parameters == ModelParameters(temperature=0.2, max_tokens=30, thinking="low")
    overrides = parse_overrides(settings=["temperature=0", "seed=5"], deny=["Bash(git push *)"])
    message = desk.read("talk", overrides, message="M1")
    assert sources(message)["temperature"] == (0, "message", "M1")
    granted = message.effective.permissions
    subjects = ("git status", "rm -r x", "git push origin")
    assert [granted.allows("Bash", subject) for subject in subjects] == [True, False, False]
    assert not granted.allows("Read")
    assert not granted.allows("Brush")
    assert (granted.sandbox.files, granted.sandbox.network) == ("read-only", False)
    assert message.context.credentials == frozenset({"one", "two"})
    assert not message.context.allows("tool:Read")
    assert message.context.allows("model:fast")
    assert [str(one) for one in message.context.chain] == ["human:tester", "agent:ada"]


def test_whoever_acts_limits_the_turn_and_the_record_says_so(desk: Desk) -> None:
    desk.programs.create_session("talk", model="fast", config={"permissions": {"tools": {"allow": ["Read", "Bash"]}}})
    limited = as_tester().child(
        rights=rights(["model:*", "tool:Read", "tool:Edit"], ["tool:Bash"]), credentials=["one"]
    )
    configuration = desk.read("talk", context=limited)
    tools = ("Read", "Bash", "Edit")
    assert [configuration.effective.permissions.allows(tool) for tool in tools] == [True, False, False]
    assert [configuration.context.allows(f"tool:{tool}") for tool in tools] == [True, False, False]
    assert configuration.turn_fields()["permissions_granted"] == {
        "layers": [
            {"layer": "principal", "source": "human:tester", "allow": ["Edit", "Read"], "deny": ["Bash"]},
            {"layer": "session", "source": "talk", "allow": ["Read", "Bash"]},
        ],
        "credentials": ["one"],
    }


def test_what_the_model_cannot_take_is_not_sent_and_recorded_so(desk: Desk) -> None:
    desk.programs.create_session("talk", model="fast", config={"defaultModelConfig": {"thinking": 3000}})
    turn = desk.ledger.turn(desk.turn("talk", MessageOverrides(situation="coding")))
    config = turn.effective_config
    assert config["parameters"] == {"temperature": 0, "max_tokens": 90}
    assert (config["model"], config["provider"], config["situation"]) == ("fast", "there", "coding")
    assert config["not_sent"] == {"thinking": 3000}
    assert config["sources"]["temperature"] == {"layer": "situation", "source": "coding of fast"}
    assert config["sources"]["thinking"] == {"layer": "session", "source": "talk"}
    assert (turn.thinking_config, turn.permissions_granted) == (None, {"layers": []})


def test_a_fork_inherits_what_its_thread_was_configured_with(desk: Desk) -> None:
    limits = {"tools": {"deny": ["Bash"]}}
    config = {"defaultModelConfig": {"situation": "coding", "seed": 3}, "permissions": limits}
    desk.programs.create_session("first", model="fast", config=config)
    turn = desk.turn("first")
    desk.ledger.fork(turn, label="second")
    forked = desk.read("second")
    assert sources(forked)["model"] == ("@(fast)", "thread", "first")
    assert sources(forked)["temperature"] == (0, "situation", "coding of fast")
    assert sources(forked)["seed"] == (3, "thread", "first")
    assert [forked.effective.permissions.allows(tool) for tool in ("Bash", "Read")] == [False, True]
    desk.programs.change("second", {"defaultModelConfig": {"seed": 4}, "permissions": {"tools": {"deny": ["Edit"]}}})
    desk.turn("second")
    later = desk.read("second")  # its parent is in its own session now, and the thread is still first's
    assert sources(later)["model"] == ("@(fast)", "thread", "first")
    assert sources(later)["seed"] == (4, "session", "second")
    desk.programs.change("second", {"defaultModelConfig": None, "permissions": None})
    assert sources(desk.read("second"))["seed"] == (3, "thread", "first")
    assert not desk.read("second").effective.permissions.allows("Bash")
    assert desk.read("second").effective.permissions.allows("Edit")
    third = desk.read(None, parent=desk.turn("second"))
    assert sources(third)["model"] == ("@(fast)", "thread", "first")


def test_what_a_turn_was_sent_with_is_the_default_of_a_fork_and_not_of_its_own_session(desk: Desk) -> None:
    desk.programs.create_session("first", model="fast", config={"defaultModelConfig": {"situation": "coding"}})
    sent_with = parse_overrides(model="other", settings=["temperature=1"], deny=["Read"], sandbox="read-only")
    turn = desk.turn("first", sent_with)
    assert desk.read("first").effective.value("model") == "@(fast)"
    assert desk.read("first").effective.permissions.allows("Read")
    desk.ledger.fork(turn, label="second")
    forked = desk.read("second").effective
    assert [forked.value(key) for key in ("model", "temperature")] == ["other", 1]
    assert not forked.permissions.allows("Read")
    assert forked.permissions.sandbox.files == "read-only"
    own = parse_overrides(model="fast", situation="coding", settings=["temperature=0.5"], deny=["Bash"])
    said = desk.read("second", own).effective
    assert [said.value(key) for key in ("model", "situation", "temperature")] == ["fast", "coding", 0.5]
    assert [said.permissions.allows(tool) for tool in ("Bash", "Read")] == [False, True]
    assert said.permissions.sandbox.files == "read-only", "nothing else is said of the sandbox"
    desk.turn("second")
    assert desk.read("second").effective.value("model") == "other", "all turns of the fork have it"
    again = desk.read("second", takes_defaults=False, parent=turn).effective
    assert again.value("model") == "@(fast)", "what does a turn again has that turn's own message"


def test_a_situation_that_a_later_layers_model_does_not_know_is_left_out(desk: Desk) -> None:
    desk.programs.create_session("talk", model="fast", config={"defaultModelConfig": {"situation": "coding"}})
    other = desk.read("talk", MessageOverrides(model="other"))
    assert (other.effective.situation, other.effective.not_sent) == (None, {"situation": "coding"})
    assert other.turn_fields()["effective_config"]["situation"] is None
    with pytest.raises(InvalidInput, match="knows no situation 'calm'"):
        desk.read("talk", MessageOverrides(situation="calm"))
    desk.programs.create_session("wrong", config={"defaultModelConfig": {"model": "other", "situation": "coding"}})
    with pytest.raises(InvalidInput, match="knows no situation 'coding'"):
        desk.read("wrong")


def test_variables_are_put_in_and_no_keys(desk: Desk) -> None:
    desk.programs.create_session("talk", model="fast", config={"defaultModelConfig": {"temperature": "${HEAT}"}})
    assert desk.read("talk").effective.value("temperature") == 0.7
    desk.programs.change("talk", {"defaultModelConfig": {"temperature": "${THERE_KEY}"}})
    with pytest.raises(InvalidConfig, match="looks like a key"):
        desk.read("talk")


def test_without_a_model_there_is_a_configuration_and_no_turn(desk: Desk) -> None:
    desk.programs.create_session("empty", config={"defaultModelConfig": {"temperature": 0}})
    empty = desk.read("empty")
    assert sources(empty) == {"temperature": (0, "session", "empty")}
    with pytest.raises(NotApplicable, match="session 'empty' has no model"):
        empty.turn_fields()
    desk.programs.create("agent", "ada", {"soul": "Be brief"})
    with pytest.raises(NotApplicable, match="agent 'ada' has no model"):
        desk.read("ada:main", persona="ada").require_model()


def test_a_session_that_is_made_later_is_none_whose_label_begins_so(desk: Desk) -> None:
    desk.programs.create_session("talk-about-it", model="other")
    desk.programs.create("agent", "ada", {"defaultModel": "fast"})
    assert sources(desk.read("talk", persona="ada"))["model"] == ("@(fast)", "persona", "ada")
    desk.ledger.labels.add_alias("chat", "talk-about-it")
    for name in ("talk-about-it", "chat", desk.ledger.session("chat").id):
        assert sources(desk.read(name, persona="ada"))["model"] == ("@(other)", "session", "talk-about-it")


def test_limits_of_a_session_that_cannot_be_read_are_not_passed_over(desk: Desk) -> None:
    desk.programs.create_session("hidden", model="fast", config={"permissions": {"tools": {"allow": []}}})
    desk.programs.create("agent", "eve", {"permissions": {"programs": ["session:read(other)", "program:read"]}})
    eve = Desk(desk.ledger.acting_as("eve"))
    with pytest.raises(NotFound):
        eve.read("hidden")
    assert eve.read("not-made-yet").session is None


def test_a_turn_of_another_ledger_passes_on_limits_and_no_model(desk: Desk, tmp_path: Path) -> None:
    desk.programs.create_session("talk", model="fast", config={"permissions": {"tools": {"deny": ["Bash"]}}})
    turn = desk.turn("talk")
    with weft.open(tmp_path / "other") as ledger:
        pull(ledger, str(desk.ledger.path), weft.open)
        other = Desk(ledger).read(None, parent=turn)
    assert sources(other) == {}
    assert not other.effective.permissions.allows("Bash")


def test_an_invoked_session_and_agent_are_asked_as_their_layers_say(tmp_path: Path) -> None:
    async def body(bench: Any) -> None:
        def prepare() -> None:
            defaults = {"model": "fast", "temperature": 0.2}
            bench.programs.create("agent", "ada", {"soul": "Be brief", "defaultModelConfig": defaults})
            bench.programs.create_session(
                "ada:main", owner="ada", config={"defaultModelConfig": {"model": "other", "maxTokens": 7}}
            )

        await bench.shop.across(prepare)
        await bench.invoke("ada:main", "Hello")
        await bench.invoke("ada", "Hello", parameters=ModelParameters(temperature=0.9))
        await bench.invoke("ada:main", "Hello", model="fast", situation="coding")
        bodies = [received.body for received in bench.server.received]
        asked = [(body["model"], body["temperature"], body["max_completion_tokens"]) for body in bodies]
        assert asked == [("m-2", 0.2, 7), ("m-2", 0.9, 7), ("m-1", 0.2, 7)]

    run(tmp_path / "ledger", body, chat())


def test_how_a_model_thinks_is_layered_like_every_parameter_and_recorded(desk: Desk) -> None:
    programs = desk.programs
    programs.create("provider", "vendor", {"providerType": "anthropic", "apiKey": "${THERE_KEY}"})
    config = {"modelId": "claude-opus-4-5", "provider": "vendor", "thinkingConfig": {"level": "low"}}
    programs.create("model", "deep", config | {"situations": {"quick": {"thinkingConfig": {"enabled": False}}}})
    programs.create_session("talk", model="deep")
    assert sources(desk.read("talk"))["thinking"] == ("low", "model", "deep")
    quick = desk.read("talk", MessageOverrides(situation="quick"))
    assert sources(quick)["thinking"] == (False, "situation", "quick of deep")
    programs.change("talk", {"defaultModelConfig": {"thinkingConfig": {"level": "high"}}})
    assert sources(desk.read("talk"))["thinking"] == ("high", "session", "talk")
    message = parse_overrides(settings=['thinkingConfig={"level":"medium"}'])
    assert sources(desk.read("talk", message, message="M1"))["thinking"] == ("medium", "message", "M1")
    assert desk.ledger.turn(desk.turn("talk", message)).thinking_config == {"thinking": "medium"}
    programs.change("talk", {"defaultModelConfig": {"thinkingConfig": {"enabled": False}}})  # beside its level
    assert sources(desk.read("talk"))["thinking"] == (False, "session", "talk")
    wrong: tuple[Any, ...] = (
        {"level": "hard"}, {"level": True}, {"enabled": "yes"}, {}, {"level": "low", "budgetTokens": 5}, "low",
    )  # fmt: skip
    for number, thinking in enumerate(wrong):
        with pytest.raises(InvalidConfig, match="thinkingConfig"):
            programs.create_session(f"s{number}", config={"defaultModelConfig": {"thinkingConfig": thinking}})
        with pytest.raises(InvalidConfig, match="thinkingConfig"):
            programs.create("model", f"m{number}", {"modelId": "m", "provider": "vendor", "thinkingConfig": thinking})
