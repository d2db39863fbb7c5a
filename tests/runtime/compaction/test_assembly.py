"""Contexts: how large they are, whether they fit, and what is cut of them, in which order and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.runtime.compaction.threads import is_extended, layers, message, turn, unpaired
from tests.runtime.inference.asking import model, provider
from weft.kernel.errors import ContextTooLong, InvalidConfig, ProviderFailed
from weft.ledger.api import NO_CUT, Context, ContextCut, cut_from
from weft.ledger.model import ImagePart, Message, ReasoningPart, ToolResultPart, ToolUsePart
from weft.runtime.assembly.compaction import CompactionSettings, SinceCompaction, compaction_settings, due, due_after
from weft.runtime.assembly.context_fitting import (
    DEFAULT_WINDOW_TOKENS,
    ContextBudget,
    ContextFit,
    MeasuredRequest,
    TurnMessages,
    apply_cut,
    budget_of,
    context_tokens,
    cut_to_fit,
    divisions,
    fit_of,
    layers_of,
    window_of,
)
from weft.runtime.inference.model_requests import (
    IMAGE_TOKENS,
    ModelParameters,
    ModelSettings,
    ProviderKind,
    ToolSpec,
    estimated_tokens,
)

LONG = "x" * 6_000
HERE = "http://127.0.0.1:1"


def budget(tokens: int) -> ContextBudget:
    return ContextBudget(window=tokens, output=0)


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [told.id for told in messages]


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_a_window_is_what_is_configured_then_what_the_table_says_then_a_default() -> None:
    def window(name: str, kind: ProviderKind = ProviderKind.OPENAI_COMPATIBLE, configured: int | None = None) -> int:
        settings = ModelSettings(id="m", name=name, provider=provider(HERE, kind), context_window=configured)
        return window_of(settings)

    assert window("claude-sonnet-4-5", configured=9_000) == 9_000
    assert window("claude-sonnet-4-5") == 200_000
    assert window("nobody-knows-it") == DEFAULT_WINDOW_TOKENS
    assert window("nobody-knows-it", ProviderKind.GOOGLE) == 1_000_000


def test_a_budget_leaves_room_for_the_answer_and_the_tools() -> None:
    settings = model(HERE, context_window=10_000, parameters=ModelParameters(max_tokens=1_000))
    plain = budget_of(settings)
    assert (plain.available, plain.share(0.8), plain.share(1)) == (9_000, 8_000, 9_000)
    assert budget_of(settings, ModelParameters(max_tokens=4_000)).available == 6_000
    assert budget_of(settings, ModelParameters(max_tokens=1_000_000)).available == 5_000
    tools = [ToolSpec(name="look", description="d" * 3_000)]
    assert budget_of(settings, tools=tools).available < 8_000


def test_what_the_provider_counted_holds_for_what_it_was_sent_and_only_the_rest_is_estimated() -> None:
    messages = layers(turn("a", LONG), turn("b")).messages
    measured = MeasuredRequest(tuple(texts(messages[:4])), 77)
    assert context_tokens(messages, measured) == 77 + estimated_tokens(messages[4:])
    assert context_tokens(messages) == estimated_tokens(messages) > 2_000
    other = MeasuredRequest(("another", *measured.message_ids[1:]), 77)
    assert context_tokens(messages, other) == estimated_tokens(messages)
    assert not fit_of(messages, budget(1_000)).fits
    assert fit_of(messages, budget(1_000), measured).fits


def test_a_size_counts_what_is_sent() -> None:
    assert estimated_tokens([message("i", "user", ImagePart("data:image/png;base64," + LONG))]) < IMAGE_TOKENS + 10
    assert estimated_tokens([message("t", "assistant", ReasoningPart(LONG))]) < 10
    assert estimated_tokens([message("c", "user", "漢" * 300)]) >= 300


# --- where a context may be divided ---------------------------------------------------------------------------------


def test_a_context_falls_into_its_layers() -> None:
    summary = message("01ARZ3NDEKTSV4RRFFQ69G5FAV", "user", "what was")
    told = (message("s", "system", "rules"), summary)
    divided = layers_of(Context(told, (), summary.id))
    assert (divided.system, divided.summary, divided.turns) == (told[:1], told[1:], ())
    assert divided.messages == told


def test_turns_are_not_divided_between_a_call_and_its_result() -> None:
    asks = TurnMessages("a", (message("1", "user", "go"), message("2", "assistant", ToolUsePart("c", "look", {}))))
    brings = TurnMessages("b", (message("3", "tool", ToolResultPart("c", "it")), message("4", "assistant", "done")))
    assert divisions([turn("x", "r"), asks, brings, turn("y")]) == [0, 1, 3, 4]
    assert divisions([turn("x"), asks]) == [0, 1], "its result may still come"
    assert divisions([asks, turn("x")]) == [0, 1, 2], "the conversation went on without it"
    assert divisions([]) == [0]


def test_the_same_id_of_two_calls_pairs_each_result_with_the_nearest_call() -> None:
    one = turn("a", "r")
    same = replace(one, turn="b")
    assert divisions([one, same]) == [0, 1, 2]


# --- cutting --------------------------------------------------------------------------------------------------------


def test_what_fits_is_not_cut() -> None:
    whole = layers(turn("a", LONG))
    cut = cut_to_fit(whole, budget(10_000))
    assert (cut.sent, cut.cut, cut.is_new) == (whole.messages, NO_CUT, False)
    assert cut.sent == cut.recorded


def test_results_of_earlier_turns_are_shortened_first_the_oldest_first() -> None:
    whole = layers(turn("a", LONG), turn("b", LONG), turn("c", LONG))
    cut = cut_to_fit(whole, budget(6_000))
    assert (cut.left_out_turns, cut.is_new, cut.cut.shortened_through) == (0, True, "b-r0")
    lengths = {
        told.id: len(str(part.output)) for told in cut.sent for part in told.content if isinstance(part, ToolResultPart)
    }
    assert lengths["a-r0"] == lengths["b-r0"] < 1_000
    assert lengths["c-r0"] == 6_000
    assert cut.recorded == whole.messages
    assert cut.shortened_results == 2
    assert cut.fit.fits


def test_then_turns_are_left_out_the_oldest_first() -> None:
    asked = "y" * 3_000
    whole = layers(*(turn(name, query=asked) for name in "abcdef"))
    cut = cut_to_fit(whole, budget(4_000))
    assert cut.left_out_turns == 4
    assert texts(cut.sent)[:2] == ["s", "e-q"]
    assert cut.sent == cut.recorded
    assert cut.cut.record() == {"left_out_through": "d"}


def test_then_results_of_the_turn_under_way_are_shortened_and_never_the_question() -> None:
    steps = [message("q", "user", "z" * 3_000), *turn("now", LONG, LONG).messages[1:-1]]
    cut = cut_to_fit(layers(turn("a"), query=steps), budget(3_000))
    assert cut.left_out_turns == 1
    assert cut.sent[1] == steps[0]
    assert unpaired(cut.sent) == []
    assert cut.fit.fits
    hopeless = cut_to_fit(layers(turn("a"), query=steps), budget(900))
    assert not hopeless.fit.fits
    assert hopeless.sent[:2] == (hopeless.recorded[0], steps[0])


def test_a_cut_is_kept_until_another_compaction_is_in_effect() -> None:
    first = layers(turn("a", LONG), turn("b", LONG), turn("c", LONG))
    cut = cut_to_fit(first, budget(6_000), compaction="one")
    grown = replace(first, turns=(*first.turns, turn("d")))
    again = cut_to_fit(grown, budget(6_000), before=cut_from(cut.cut.record()), compaction="one")
    assert (again.cut, again.is_new) == (cut.cut, False)
    assert is_extended(cut.sent[:-1], again.sent)
    anew = cut_to_fit(grown, budget(60_000), before=cut.cut, compaction="two")
    assert anew.sent == grown.messages
    assert apply_cut(first, cut.cut) == cut.sent


RESULT = st.sampled_from(["short", "y" * 900, "z" * 2_500])
THREADS = st.lists(st.lists(RESULT, max_size=3), min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(THREADS, st.integers(400, 6_000))
def test_requests_extend_each_other_unless_a_cut_says_why_and_no_call_is_parted(
    thread: list[list[str]], window: int
) -> None:
    """A thread grows turn by turn; each request is cut as the one before, and further only where it must."""
    cut: ContextCut = NO_CUT
    before: tuple[Message, ...] = ()
    turns = [turn(f"t{i}", *results) for i, results in enumerate(thread)]
    for i in range(len(turns)):
        asked = turns[i].messages[:1]
        request = cut_to_fit(layers(*turns[:i], query=asked), budget(window), before=cut)
        assert unpaired(request.sent) == []
        assert request.sent[0].role == "system"
        assert request.sent[-1] == asked[-1]
        assert is_extended(before, request.sent) or request.is_new
        assert request.is_new == (request.cut != cut)
        assert request.fit.fits or request.left_out_turns == i
        assert apply_cut(layers(*turns[:i], query=asked), request.cut) == request.sent
        cut, before = request.cut, request.sent


# --- when a compaction is due ---------------------------------------------------------------------------------------

SOME = SinceCompaction(5, 1_000)


def fit(tokens: int) -> ContextFit:
    return ContextFit(tokens, ContextBudget(window=10_000, output=1_000))


@pytest.mark.parametrize(
    ("configured", "tokens", "since", "trigger"),
    [
        ({}, 7_999, SOME, None),
        ({}, 8_000, SOME, "context_limit"),
        ({}, 8_000, SinceCompaction(0, 0), None),
        ({"threshold": 0.5}, 5_000, SOME, "context_limit"),
        ({"everyTurns": 6}, 10, SOME, None),
        ({"everyTurns": 5}, 10, SOME, "periodic"),
        ({"everyTokens": 1_001}, 10, SOME, None),
        ({"everyTokens": 1_000}, 10, SOME, "periodic"),
        ({"everyTurns": 5, "automatic": False}, 9_000, SOME, None),
    ],
)
def test_a_compaction_is_due_by_size_or_by_period(
    configured: dict[str, int], tokens: int, since: SinceCompaction, trigger: str | None
) -> None:
    assert due(compaction_settings({"compaction": configured}), fit(tokens), since) == trigger


def test_an_overflow_is_recovered_from_once() -> None:
    assert due_after(ContextTooLong("too long"), recovered=False) == "overflow_recovery"
    assert due_after(ContextTooLong("too long"), recovered=True) is None
    assert due_after(ProviderFailed("no"), recovered=False) is None


def test_settings_lie_over_each_other_field_by_field() -> None:
    merged = compaction_settings({"compaction": {"model": "@(small)", "keep": 3}}, None, {"compaction": {"keep": 5}})
    assert merged == CompactionSettings(model="@(small)", keep=5)
    with pytest.raises(InvalidConfig):
        compaction_settings({"compaction": {"threshold": 7}})


def test_a_cut_without_marks_is_none() -> None:
    assert ContextCut().is_empty
    assert cut_from(None) == NO_CUT
