"""What goes over the wire comes back equal, and deadlines travel as remaining budget."""

from types import MappingProxyType

import pytest

from common.errors import InvalidInput, TagMismatch
from common.request import (
    Compatibility,
    FinishReason,
    GeneratedToken,
    Handoff,
    Limits,
    PositionLogprobs,
    Sampling,
    Work,
)
from common.rpc import convert, convert_inference
from common.rpc.inference_data import (
    Candidate,
    ChatMessage,
    ClusterInfo,
    Delta,
    Explanation,
    GenerateRequest,
    InstanceInfo,
    Ledger,
    ModelInfo,
    Placement,
    SamplingOptions,
    Stopping,
    Usage,
)
from common.rpc.worker_data import (
    DecodeRequest,
    InstanceDescription,
    PrefillFirstToken,
    PrefillStarted,
    StepBatch,
    TransferSource,
    WorkFailed,
    WorkJoined,
    WorkPreempted,
    WorkTokens,
)

TOKEN = GeneratedToken(7, 3, PositionLogprobs(-0.5, ((3, -0.5), (4, -1.5))))
SAMPLING = Sampling(0.5, 0.75, 5, 0.25, 1.0, -1.0, 1.5, MappingProxyType({3: 2.0}), 2**62)
WORK = Work("w-1", "s-1", (1, 2, 3), 2, SAMPLING, Limits(9, 1, frozenset({1, 5})), 3, "t", -2, 108.0)
COMPATIBILITY = Compatibility("f", "h1", "bf16", 64, 62, 576, 1)


def test_work_keeps_every_field_and_its_remaining_budget():
    back = convert.work_from_wire(convert.work_to_wire(WORK, now_s=100.0), now_s=1000.0)
    assert back == Work("w-1", "s-1", (1, 2, 3), 2, SAMPLING, WORK.limits, 3, "t", -2, 1008.0)


def test_no_deadline_and_a_passed_deadline_stay_apart():
    assert convert.budget_ms(None, 5.0) == 0
    assert convert.deadline_s(0, 5.0) is None
    assert convert.budget_ms(4.0, 5.0) == 1


def test_sampling_between_processes_is_complete():
    wire = convert.sampling_to_wire(SAMPLING)
    assert convert.sampling_from_wire(wire) == SAMPLING
    wire.ClearField("top_k")
    with pytest.raises(InvalidInput, match=r"sampling\.top_k"):
        convert.sampling_from_wire(wire)


def test_work_without_prompt_is_refused():
    wire = convert.work_to_wire(WORK, 0.0)
    wire.prompt_tokens = 4
    with pytest.raises(InvalidInput, match="prompt_tokens"):
        convert.work_from_wire(wire, 0.0)


@pytest.mark.parametrize("event", [PrefillStarted(64, 0.5, 3), PrefillFirstToken(TOKEN, FinishReason.STOP, 0.25)])
def test_prefill_events(event):
    assert convert.prefill_event_from_wire(convert.prefill_event_to_wire(event)) == event


def test_a_failed_prefill_is_its_error():
    back = convert.prefill_event_from_wire(convert.prefill_event_to_wire(TagMismatch("block 3")))
    assert type(back) is TagMismatch


def test_steps():
    events = (
        WorkJoined("a", 0.5, 0.25),
        WorkTokens("a", (TOKEN,), None, 2, 1),
        WorkTokens("b", (GeneratedToken(9, 1),), FinishReason.LENGTH),
        WorkPreempted("c"),
    )
    batch = StepBatch(2**63 + 5, 8, events)
    assert convert.step_from_wire(convert.step_to_wire(batch)) == batch
    failed = convert.step_from_wire(convert.step_to_wire(StepBatch(1, 2, (WorkFailed("d", TagMismatch("x")),))))
    assert isinstance(failed.events[0], WorkFailed)
    assert type(failed.events[0].error) is TagMismatch


def test_handoff_description_and_decode_request():
    handoff = Handoff(TOKEN, (5, 6), None)
    assert convert.handoff_from_wire(convert.handoff_to_wire(handoff)) == handoff
    description = InstanceDescription("p0", "prefill", "g", 2**63, COMPATIBILITY, 100, 4096, 8, 812.5)
    assert convert.description_from_wire(convert.description_to_wire(description)) == description
    request = DecodeRequest(WORK, TransferSource("p0", "h:1", 2**63 + 1))
    assert convert.decode_request_from_wire(convert.decode_request_to_wire(request, 5.0), 5.0) == request


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest(text=""),
        GenerateRequest(chat=()),
        GenerateRequest(token_ids=()),
        GenerateRequest(),
        GenerateRequest(
            chat=(ChatMessage("user", "hi"),),
            request_id="r",
            model="m",
            sampling=SamplingOptions(temperature=0.0, logit_bias={3: -1.0}, seed=0),
            stopping=Stopping(0, 1, ("a",), (2,), True),
            logprobs=0,
            n=2,
            tenant="t",
            priority=-3,
            deadline_ms=0,
        ),
    ],
    ids=["empty text", "empty chat", "empty ids", "no prompt", "full"],
)
def test_requests_keep_what_was_given_and_what_was_not(request_):
    assert convert_inference.request_from_wire(convert_inference.request_to_wire(request_)) == request_


def test_deltas():
    delta = Delta(
        "r",
        1,
        "text",
        (3, 4),
        ((3, PositionLogprobs(-0.5, ((3, -0.5),))),),
        FinishReason.STOP,
        "</s>",
        Usage(1, 2, 3, 4, 5, 6),
        Ledger((("queue", 0.5), ("steps", 1.5)), 2.0),
    )
    assert convert_inference.delta_from_wire(convert_inference.delta_to_wire(delta)) == delta
    assert convert_inference.delta_from_wire(convert_inference.delta_to_wire(Delta("r", 0))) == Delta("r", 0)


def test_information():
    model = ModelInfo("m", "f", 100, 4096, 64, 1, SAMPLING, True)
    assert convert_inference.model_from_wire(convert_inference.model_to_wire(model)) == model
    instance = InstanceInfo("i", "decode", "g", "h:1", 2**63, "ready", 1, 2, 3, 4, 5.5, 6, 7, 8.5, 0.25, -1)
    cluster = ClusterInfo("m", (instance,), "s", 6, 7, 8)
    assert convert_inference.cluster_from_wire(convert_inference.cluster_to_wire(cluster)) == cluster
    placements = (Placement("prefill", "p0", (Candidate("p0", 0.5, {"queue_s": 0.5}),)),)
    explanation = Explanation("r", placements, Ledger((("other", 1.0),), 1.0), 2, "stop", 3, 4, "5" * 32)
    assert convert_inference.explanation_from_wire(convert_inference.explanation_to_wire(explanation)) == explanation
