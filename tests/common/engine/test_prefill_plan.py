"""Order and sharing of prefill steps."""

from dataclasses import replace

from common.engine.prefill_plan import Chunk, PromptState, plan_chunks, prompt_order

PLAIN = PromptState("a", 100, 0.0, 0, False, 0)


def prompts(**remaining: int) -> list[PromptState]:
    return [replace(PLAIN, work_id=k, remaining_tokens=v, order=i) for i, (k, v) in enumerate(remaining.items())]


def test_shortest_remaining_goes_first_and_ties_keep_their_order() -> None:
    assert prompt_order(prompts(long=1000, b=10, c=10, a=5), 1.0) == ["a", "b", "c", "long"]


def test_waiting_outweighs_length_at_the_stated_rate() -> None:
    long = replace(PLAIN, work_id="long", remaining_tokens=1000)
    short = replace(PLAIN, work_id="short", remaining_tokens=10, order=1)
    assert prompt_order([replace(long, waited_s=98.9), short], 10.0)[0] == "short"
    assert prompt_order([replace(long, waited_s=99.1), short], 10.0)[0] == "long"


def test_resumed_work_precedes_priority_precedes_length() -> None:
    resumed = replace(PLAIN, work_id="resumed", remaining_tokens=500, resumed=True)
    urgent = replace(PLAIN, work_id="urgent", remaining_tokens=400, priority=3)
    late = replace(PLAIN, work_id="late", remaining_tokens=1, priority=-1)
    plain = replace(PLAIN, work_id="plain", remaining_tokens=300)
    assert prompt_order([late, plain, urgent, resumed], 1.0) == ["resumed", "urgent", "plain", "late"]


def test_a_step_is_shared_in_order_and_never_over_full() -> None:
    chunks = plan_chunks(
        prompts(long=900, short=30, middle=70), chunk_tokens=64, max_step_tokens=128, aging_tokens_per_s=1.0
    )
    assert chunks == [Chunk("short", 30), Chunk("middle", 64), Chunk("long", 34)]


def test_a_lone_prompt_takes_one_chunk_only() -> None:
    chunks = plan_chunks(prompts(long=900), chunk_tokens=64, max_step_tokens=128, aging_tokens_per_s=1.0)
    assert chunks == [Chunk("long", 64)]
