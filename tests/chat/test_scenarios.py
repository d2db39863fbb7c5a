"""The model of conversations, sentence by sentence, and its example scenarios as scripts through the real broker.

`SENTENCES` names for each sentence of the model the test that shows it.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.chat.scenes import Scene, calling, scene_at, text_of
from tests.conftest import NewPostgresLedger
from tests.runtime.broker.test_gated_calls import Policy, Switch
from tests.runtime.scripted import HANG, HOLD, Script, chat_saying
from weft.kernel.enums import Decision
from weft.kernel.errors import NotAllowed, NotFound
from weft.ledger.api import Approval, Runs
from weft.ledger.model import TextPart
from weft.programs import Programs
from weft.runtime.inference.model_requests import RequestBudget
from weft.runtime.tool.gate import ToolGate

ROOMS, PROFILES = "tests.ledger.test_rooms", "tests.ledger.test_room_profiles"
MENTIONS, SUGGESTIONS = "tests.kernel.test_mentions", "tests.chat.test_suggestions"
COMMANDS, STREAM, HERE = "tests.surfaces.test_cli_room", "tests.chat.test_room_stream", __name__
SENTENCES: dict[str, tuple[str, str]] = {
    # users
    "a user is a person, with name, email and image": (PROFILES, "test_a_person_has_an_address_of_mail_and_a_picture"),
    "a user creates, owns and manages agents": (
        PROFILES,
        "test_only_the_creator_edits_deletes_and_changes_the_visibility_of_an_agent",
    ),
    "a user participates in conversations": (
        ROOMS,
        "test_a_mentioned_absent_person_is_invited_and_a_participant_confirms",
    ),
    "a user mentions users and agents": (HERE, "test_the_example_scenarios"),
    # agents
    "an agent has every field": (
        PROFILES,
        "test_a_profile_has_every_field_and_is_read_by_those_the_agent_works_for",
    ),
    "an agent is a user's or the system's": (
        PROFILES,
        "test_the_triage_agent_cannot_be_deleted_hidden_or_shared_by_anybody",
    ),
    "an agent has a last active time": (PROFILES, "test_an_agent_was_last_active_when_it_last_answered"),
    "an agent is owned by whoever created it": (
        PROFILES,
        "test_only_the_creator_edits_deletes_and_changes_the_visibility_of_an_agent",
    ),
    "an agent is added to conversations": (HERE, "test_who_may_add_mention_and_remove"),
    "an agent is mentioned in messages": (ROOMS, "test_a_public_agent_answers_whoever_mentions_it"),
    "an agent responds by its logic and its tools": (
        HERE,
        "test_an_agents_tool_waits_for_a_person_and_its_answer_is_posted",
    ),
    # conversations
    "a conversation has a title, a creator and the time of its last message": (HERE, "test_every_field_is_told"),
    "a conversation is where users and agents interact": (HERE, "test_the_example_scenarios"),
    "a conversation has many participants": (HERE, "test_several_agents_answer_at_once_each_in_its_own_session"),
    "a conversation contains messages": (ROOMS, "test_a_public_agent_answers_whoever_mentions_it"),
    # participants
    "a participant has every field": (HERE, "test_every_field_is_told"),
    "a participant links a user or an agent to a conversation": (HERE, "test_every_field_is_told"),
    "a participant's status is tracked": (ROOMS, "test_a_public_agent_answers_whoever_mentions_it"),
    "a participant's removal is tracked": (HERE, "test_who_may_add_mention_and_remove"),
    # messages
    "a message has every field": (HERE, "test_every_field_is_told"),
    "a message is sent by a user, an agent or the system": (HERE, "test_every_field_is_told"),
    "a message belongs to a conversation": (HERE, "test_every_field_is_told"),
    "a message is authored by a participant": (HERE, "test_every_field_is_told"),
    # mentions
    "mentions have the form @[Name](kind:ID)": (
        MENTIONS,
        "test_every_name_comes_back_as_it_was_written_wherever_the_mention_stands",
    ),
    "mentions are extracted from the content": (MENTIONS, "test_code_escapes_and_unknown_forms_mention_nobody"),
    "mentions route messages and highlight participants": (HERE, "test_the_example_scenarios"),
    "mentions are rendered": (COMMANDS, "test_what_was_said_is_printed_in_pages_and_marked_as_read"),
    "typing @ suggests users and agents in the conversation": (
        SUGGESTIONS,
        "test_participants_come_first_then_agents_then_people_in_the_name_of_whoever_types",
    ),
    # permissions and visibility
    "any user adds and mentions public agents": (HERE, "test_the_example_scenarios"),
    "only the creator and those invited add and mention private agents": (HERE, "test_the_example_scenarios"),
    "new agents are public unless marked private": (HERE, "test_the_example_scenarios"),
    "any user mentions any public agent in a conversation they participate in": (HERE, "test_the_example_scenarios"),
    "mentioning an agent adds it if it is not present": (HERE, "test_the_example_scenarios"),
    "only the creator edits, deletes or shows an agent": (
        PROFILES,
        "test_only_the_creator_edits_deletes_and_changes_the_visibility_of_an_agent",
    ),
    "anyone views a public agent's profile": (
        PROFILES,
        "test_a_profile_has_every_field_and_is_read_by_those_the_agent_works_for",
    ),
    "any user in a conversation mentions any other participant": (HERE, "test_who_may_add_mention_and_remove"),
    "mentioning an absent user triggers an invitation": (
        ROOMS,
        "test_a_mentioned_absent_person_is_invited_and_a_participant_confirms",
    ),
    "users add public agents and their own private ones": (HERE, "test_who_may_add_mention_and_remove"),
    "agents are removed, except system agents": (HERE, "test_who_may_add_mention_and_remove"),
    "an agent's owner restricts its removal": (ROOMS, "test_who_may_remove_whom"),
    # system agents
    "the triage agent routes unmentioned messages": (
        ROOMS,
        "test_what_mentions_nobody_goes_to_triage_and_what_mentions_people_alone_does_not",
    ),
    "the triage agent finds the appropriate agents": (
        "tests.chat.test_triage",
        "test_without_a_model_names_tags_and_descriptions_decide_and_the_turn_says_how",
    ),
    "the system agent kind tells system agents apart": (PROFILES, "test_a_system_agent_of_another_ledger_is_none_here"),
    # scenarios
    "Alice's public agent answers Bob": (HERE, "test_the_example_scenarios"),
    "Alice's private agent is hers alone unless she shares it": (HERE, "test_the_example_scenarios"),
    "Bob mentions Alice, who is notified": (HERE, "test_the_example_scenarios"),
}


def test_every_sentence_names_a_test_that_exists() -> None:
    missing = [where for where in SENTENCES.values() if not callable(getattr(import_module(where[0]), where[1], None))]
    assert missing == []


@pytest.fixture(params=["disk", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> str | Path:
    return new_postgres_ledger() if request.param == "postgres" else tmp_path / "ledger.db"


def test_the_example_scenarios(address: str | Path) -> None:
    async def main() -> None:
        async with scene_at(address) as scene:
            scene.agent("alice", "AgentA", "I am AgentA.")
            scene.agent("alice", "AgentB", "I am AgentB.", visibility="private")
            await public_agent(scene)
            await private_agent(scene)
            await person(scene)
            if isinstance(address, str):  # what follows has tests of its own on disk
                await several_at_once(scene)
                await asks_a_person(scene)

    asyncio.run(main())


async def public_agent(scene: Scene) -> None:
    """Alice creates AgentA. Bob adds it to his conversation and mentions it; it responds. Mentioning alone adds it."""
    bob = scene.as_("bob")
    bob.rooms.create("bob's")
    bob.rooms.add("bob's", "AgentA")
    await scene.settle(bob.rooms.post("bob's", f"{scene.mention('AgentA')} hello"))
    assert scene.said("bob", "bob's", "AgentA") == ["I am AgentA."]
    bob.rooms.create("other")
    posted = bob.rooms.post("other", f"{scene.mention('AgentA')} hello")
    assert posted.joined == ("AgentA",)
    await scene.settle(posted)
    assert scene.said("bob", "other", "AgentA") == ["I am AgentA."]


async def private_agent(scene: Scene) -> None:
    """Alice creates AgentB. Only she adds and mentions it, until she shares it."""
    alice, bob = scene.as_("alice"), scene.as_("bob")
    with pytest.raises(NotFound):
        bob.rooms.add("bob's", "AgentB")
    assert bob.rooms.post("bob's", f"{scene.mention('AgentB')} hello").reached == ()
    alice.rooms.create("shared", agents=["AgentB"], people=["bob"])
    await scene.settle(alice.rooms.post("shared", f"{scene.mention('AgentB')} hello"))
    refused = bob.rooms.post("shared", f"{scene.mention('AgentB')} hello")
    assert refused.reached == ()
    assert refused.notices == (f"{scene.mention('AgentB')} is private: it answers only those it was shared with.",)
    assert scene.said("bob", "shared", "AgentB") == ["I am AgentB."]
    Programs(alice).share_agent("AgentB", "bob")
    bob.rooms.add("bob's", "AgentB")
    await scene.settle(bob.rooms.post("bob's", f"{scene.mention('AgentB')} hello"))
    assert scene.said("bob", "bob's", "AgentB") == ["I am AgentB."]
    (waiting,) = bob.rooms.post("shared", f"{scene.mention('AgentB')} again").reached
    Programs(alice).unshare_agent("AgentB", "bob")
    asked = len(scene.requests("AgentB"))
    await scene.broker().wait_for_answer(waiting.message, waiting.session_id)
    assert (len(scene.requests("AgentB")), scene.ledger.sync.inbox.get(waiting.message).state) == (asked, "dead")


async def person(scene: Scene) -> None:
    """Bob mentions Alice, who is notified: in a room where she is by its unread mentions, else by an invitation."""
    alice, bob = scene.as_("alice"), scene.as_("bob")
    before = alice.rooms.get("shared").unread_mentions
    assert bob.rooms.post("shared", f"{scene.mention('alice')} look").reached == ()
    assert alice.rooms.get("shared").unread_mentions == before + 1
    (mention,) = alice.rooms.messages("shared")[-1].mentions
    assert (mention.kind, mention.id, mention.name) == ("user", scene.ids["alice"], "alice")
    assert bob.rooms.post("other", f"{scene.mention('alice')} come").invited == ("alice",)
    assert [one.conversation_title for one in alice.rooms.invitations()] == ["other"]


def test_several_agents_answer_at_once_each_in_its_own_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            await several_at_once(scene)

    asyncio.run(main())


async def several_at_once(scene: Scene) -> None:
    """Nobody is answered before all three have asked: so they do it at the same time."""
    names, before = ["one", "two", "three"], len(scene.server.received)

    def together(body: dict[str, Any]) -> Script:
        if len(scene.server.received) == before + len(names):
            scene.server.released.set()
        return [HOLD, *chat_saying({"content": "Here."})]

    for name in names:
        scene.agent("alice", name, together)
    alice = scene.as_("alice")
    alice.rooms.create("at once", agents=names)
    posted = alice.rooms.post("at once", " ".join(map(scene.mention, names)))
    assert len({one.session_id for one in posted.reached}) == len(names)
    broker = scene.broker()
    await asyncio.gather(*(broker.wait_for_answer(one.message, one.session_id) for one in posted.reached))
    assert [scene.said("alice", "at once", name) for name in names] == [["Here."]] * len(names)
    answers = [one for one in scene.messages("alice", "at once") if one.meta.get("answers") == posted.message]
    assert len({one.meta["turn"] for one in answers}) == len(names)


def test_what_a_model_is_sent_is_recorded_and_goes_on_from_one_message_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            scene.agent("alice", "AgentA", "I am AgentA.")
            alice, bob = scene.as_("alice"), scene.as_("bob")
            alice.rooms.create("plans", agents=["AgentA"], people=["bob"])
            (reached,) = alice.rooms.post("plans", f"{scene.mention('AgentA')} one").reached
            await scene.broker().wait_for_answer(reached.message, reached.session_id)
            bob.rooms.post("plans", f"{scene.mention('alice')} between")
            await scene.settle(bob.rooms.post("plans", f"{scene.mention('AgentA')} two"))
            first, second = scene.requests("AgentA")
            assert second[: len(first)] == first
            assert [message["role"] for message in second[len(first) :]] == ["assistant", "user"]
            assert "between" in text_of(second[-1])
            assert "one" not in text_of(second[-1]).split()
            thread = scene.ledger.sync.thread(reached.session).messages
            recorded = [message for message in thread if message.role == "user"]
            texts = [[part.text for part in message.content if isinstance(part, TextPart)] for message in recorded]
            sent = [message for message in second if message["role"] == "user"]
            assert ["\n".join(map(str, parts)) for parts in texts] == [text_of(message) for message in sent]
            assert recorded[-1].context is not None
            assert recorded[-1].context["room"] == alice.rooms.get("plans").id

    asyncio.run(main())


def test_an_agents_tool_waits_for_a_person_and_its_answer_is_posted(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            await asks_a_person(scene)

    asyncio.run(main())


async def asks_a_person(scene: Scene) -> None:
    """An agent's call waits until somebody grants it; then its answer is posted."""
    scene.agent(
        "alice",
        "Porter",
        lambda body: (
            chat_saying({"content": "It is open."}) if body["messages"][-1]["role"] == "tool" else calling("door")
        ),
    )
    door, asked = Switch("door"), asyncio.Event()

    class History:
        async def is_untrusted(self, turn: str) -> bool:
            return Runs(scene.ledger.sync).is_untrusted(turn)

        async def session_grants(self) -> list[Approval]:
            return []

    async def equip(plan: Any, configuration: Any, standing: Any) -> None:
        plan.tools = {"door": door}
        plan.gate = ToolGate(plan.tools, Policy(Decision.ASK), History())
        plan.on_asked = lambda request: asked.set()

    scene.equip = equip
    bob = scene.as_("bob")
    bob.rooms.create("doors")
    (reached,) = bob.rooms.post("doors", f"{scene.mention('Porter')} open the door").reached
    broker = scene.broker()
    answered = asyncio.ensure_future(broker.wait_for_answer(reached.message, reached.session_id))
    await asked.wait()
    assert (door.ran, scene.said("bob", "doors", "Porter")) == ([], [])
    assert bob.rooms.participants("doors")[-1].status == "thinking"
    (request,) = scene.ledger.sync.approvals.list(states=("open",))
    scene.ledger.sync.approvals.grant(request.id, plan_digest=request.plan_digest)
    broker.wake()
    await answered
    assert (door.ran, scene.said("bob", "doors", "Porter")) == (["quiet"], ["It is open."])
    assert bob.rooms.participants("doors")[-1].status == "inactive"


def test_a_budget_holds_in_a_room_and_is_told_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            scene.agent("alice", "AgentA", "I am AgentA.")

            async def equip(plan: Any, configuration: Any, standing: Any) -> None:
                plan.budget = RequestBudget(money=1)

            scene.equip = equip
            alice = scene.as_("alice")
            alice.rooms.create("plans")
            (reached,) = alice.rooms.post("plans", f"{scene.mention('AgentA')} hello").reached
            await scene.broker().wait_for_answer(reached.message, reached.session_id)
            assert scene.requests("AgentA") == []
            notice = scene.messages("alice", "plans")[-1]
            assert (notice.kind, notice.notice) == ("system", "error")
            assert notice.text.startswith(f"{scene.mention('AgentA')} could not answer: ")
            assert "has no price" in notice.text

    asyncio.run(main())


def test_queue_modes_hold_in_a_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            scripts: list[Script] = [
                [HANG],
                chat_saying({"content": "Interrupted."}),
                chat_saying({"content": "Collected."}),
            ]
            scene.agent("alice", "AgentA", lambda body: scripts.pop(0))
            alice, mention = scene.as_("alice"), scene.mention("AgentA")
            alice.rooms.create("plans")
            (first,) = alice.rooms.post("plans", f"{mention} think long").reached
            broker = scene.broker()
            serving = asyncio.ensure_future(broker.serve())
            await scene.server.hanging.wait()
            (second,) = alice.rooms.post("plans", f"{mention} stop", mode="interrupt").reached
            broker.wake()
            await broker.wait_for_answer(second.message, second.session_id)
            broker.drain()
            await serving
            assert scene.said("alice", "plans", "AgentA")[-1] == "Interrupted."
            assert scene.ledger.sync.inbox.get(first.message).state != "queued"
            posts = [alice.rooms.post("plans", f"{mention} {word}", mode="collect") for word in ("red", "blue")]
            await scene.settle(posts[-1])
            turns = {scene.ledger.sync.inbox.get(one.reached[0].message).turn for one in posts}
            assert len(turns) == 1
            assert scene.said("alice", "plans", "AgentA").count("Collected.") == 1
            last = "\n".join(map(text_of, scene.requests("AgentA")[-1][-2:]))
            assert "red" in last
            assert "blue" in last

    asyncio.run(main())


def test_a_steering_message_enters_the_turn_that_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            asked = asyncio.Event()

            def answer(body: dict[str, Any]) -> Script:
                """Looks around until somebody says where to go."""
                asked.set()
                if "turn left" in "\n".join(map(text_of, body["messages"])):
                    return chat_saying({"content": "As you wish."})
                return calling("look", sum(message["role"] == "tool" for message in body["messages"]))

            async def equip(plan: Any, configuration: Any, standing: Any) -> None:
                plan.tools, plan.max_requests = {"look": Looking()}, 100_000

            scene.agent("alice", "AgentA", answer)
            scene.equip = equip
            alice, mention = scene.as_("alice"), scene.mention("AgentA")
            alice.rooms.create("plans")
            (first,) = alice.rooms.post("plans", f"{mention} begin").reached
            broker = scene.broker()
            serving = asyncio.ensure_future(broker.serve())
            await asked.wait()
            (second,) = alice.rooms.post("plans", f"{mention} turn left", mode="steer").reached
            broker.wake()
            await broker.wait_for_answer(second.message, second.session_id)
            broker.drain()
            await serving
            inbox = scene.ledger.sync.inbox
            assert inbox.get(first.message).turn == inbox.get(second.message).turn
            assert scene.said("alice", "plans", "AgentA") == ["As you wish."]

    asyncio.run(main())


class Looking(Switch):
    """A tool that runs without being decided about."""

    def __init__(self) -> None:
        super().__init__("look")

    async def invoke(self, arguments: Any, context: Any) -> Any:
        return "nothing there"


def test_who_may_add_mention_and_remove(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            scene.agent("alice", "AgentA", "I am AgentA.")
            scene.agent("bob", "AgentC", "I am AgentC.", visibility="private")
            alice, bob = scene.as_("alice"), scene.as_("bob")
            alice.rooms.create("plans", people=["bob"])
            bob.rooms.add("plans", "AgentA")
            bob.rooms.add("plans", "AgentC")
            alice.rooms.create("alice's")
            with pytest.raises(NotFound):
                alice.rooms.add("alice's", "AgentC")
            posted = alice.rooms.post("plans", f"{scene.mention('bob')} {scene.mention('AgentA')} hello")
            await scene.settle(posted)
            assert bob.rooms.get("plans").unread_mentions == 1
            bob.rooms.remove("plans", "AgentA")
            gone = [one for one in bob.rooms.participants("plans", removed=True) if one.is_removed]
            assert [(one.name, one.removed_at is not None) for one in gone] == [("AgentA", True)]
            assert scene.said("bob", "plans", "AgentA") == ["I am AgentA."]
            with pytest.raises(NotAllowed):
                bob.rooms.remove("plans", "alice")
            stranger = scene.programs.create("human", "carol", {}).name
            for deed in (
                lambda: scene.as_(stranger).rooms.add("plans", "AgentA"),
                lambda: scene.as_(stranger).rooms.remove("plans", "AgentC"),
                lambda: scene.as_(stranger).rooms.post("plans", scene.mention("AgentA")),
            ):
                with pytest.raises(NotFound):
                    deed()

    asyncio.run(main())


def test_every_field_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene_at(tmp_path / "ledger.db") as scene:
            scene.agent("alice", "AgentA", "I am AgentA.")
            alice = scene.as_("alice")
            room = alice.rooms.create("plans")
            posted = alice.rooms.post("plans", f"{scene.mention('AgentA')} hello", meta={"client": "web"})
            await scene.settle(posted)
            told = alice.rooms.get("plans")
            messages = {message.text: message for message in scene.messages("alice", "plans")}
            answer = messages["I am AgentA."]
            assert (told.id, told.title, told.created_by, told.last_message_time) == (
                room.id,
                "plans",
                scene.ids["alice"],
                answer.posted_at,
            )
            people = {one.name: one for one in alice.rooms.participants("plans")}
            agent, alice_there = people["AgentA"], people["alice"]
            assert (agent.conversation_id, agent.kind, agent.agent_id, agent.user_id) == (
                room.id,
                "agent",
                scene.ids["AgentA"],
                None,
            )
            assert (alice_there.kind, alice_there.user_id, alice_there.agent_id) == ("user", scene.ids["alice"], None)
            assert agent.added_at >= alice_there.added_at
            assert (agent.status, agent.is_removed) == ("inactive", False)
            question, joined = (
                messages[f"{scene.mention('AgentA')} hello"],
                messages[f"{scene.mention('AgentA')} joined."],
            )
            assert (question.author_participant_id, question.conversation_id, question.kind) == (
                alice_there.id,
                room.id,
                "participant",
            )
            assert question.meta == {"client": "web"}
            assert answer.author_participant_id == agent.id
            assert (joined.kind, joined.author_participant_id, joined.notice) == ("system", None, "joined")
            assert len({question.id, answer.id, joined.id}) == 3

    asyncio.run(main())
