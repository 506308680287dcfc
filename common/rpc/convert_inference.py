"""The public call: wire <-> plain data, both ways."""

from google.protobuf.message import DecodeError

from common.errors import InvalidInput
from common.request import PositionLogprobs
from common.rpc.convert import (
    finish_from_wire,
    finish_to_wire,
    logprobs_from_wire,
    logprobs_to_wire,
    sampling_from_wire,
    sampling_to_wire,
)
from common.rpc.inference_data import (
    CancelOutcome,
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
from common.rpc.same_fields import same
from protos import inference_pb2, types_pb2

_OPTIONS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


def options_to_wire(options: SamplingOptions) -> types_pb2.Sampling:
    wire = types_pb2.Sampling(logit_bias=dict(options.logit_bias))
    for name in _OPTIONS:
        value = getattr(options, name)
        if value is not None:
            setattr(wire, name, value)
    return wire


def options_from_wire(wire: types_pb2.Sampling) -> SamplingOptions:
    given = {name: getattr(wire, name) for name in _OPTIONS if wire.HasField(name)}
    return SamplingOptions(logit_bias=dict(wire.logit_bias), **given)


def request_to_wire(request: GenerateRequest) -> inference_pb2.GenerateRequest:
    wire = inference_pb2.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        sampling=options_to_wire(request.sampling),
        stopping=inference_pb2.Stopping(
            max_tokens=request.stopping.max_tokens,
            min_tokens=request.stopping.min_tokens,
            stop=request.stopping.stop,
            stop_token_ids=request.stopping.stop_token_ids,
            ignore_eos=request.stopping.ignore_eos,
        ),
        logprobs=request.logprobs,
        n=request.n,
        tenant=request.tenant,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )
    if request.text is not None:
        wire.text = request.text
    if request.chat is not None:
        wire.chat.SetInParent()
        for message in request.chat:
            wire.chat.messages.add(role=message.role, content=message.content)
    if request.token_ids is not None:
        wire.token_ids.SetInParent()
        wire.token_ids.ids.extend(request.token_ids)
    return wire


def request_from_wire(wire: inference_pb2.GenerateRequest) -> GenerateRequest:
    prompt = wire.WhichOneof("prompt")
    stopping = wire.stopping
    return GenerateRequest(
        text=wire.text if prompt == "text" else None,
        chat=tuple(ChatMessage(m.role, m.content) for m in wire.chat.messages) if prompt == "chat" else None,
        token_ids=tuple(wire.token_ids.ids) if prompt == "token_ids" else None,
        request_id=wire.request_id,
        model=wire.model,
        sampling=options_from_wire(wire.sampling),
        stopping=Stopping(
            max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
            min_tokens=stopping.min_tokens,
            stop=tuple(stopping.stop),
            stop_token_ids=tuple(stopping.stop_token_ids),
            ignore_eos=stopping.ignore_eos,
        ),
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        n=wire.n if wire.HasField("n") else None,
        tenant=wire.tenant,
        priority=wire.priority,
        deadline_ms=wire.deadline_ms if wire.HasField("deadline_ms") else None,
    )


def usage_to_wire(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(**same(Usage, usage))


def usage_from_wire(wire: types_pb2.Usage) -> Usage:
    return Usage(**same(Usage, wire))


def ledger_to_wire(ledger: Ledger) -> types_pb2.Ledger:
    entries = [types_pb2.LedgerEntry(part=part, seconds=seconds) for part, seconds in ledger.entries]
    return types_pb2.Ledger(entries=entries, total_s=ledger.total_s)


def ledger_from_wire(wire: types_pb2.Ledger) -> Ledger:
    return Ledger(tuple((entry.part, entry.seconds) for entry in wire.entries), wire.total_s)


def delta_to_wire(delta: Delta) -> inference_pb2.GenerateDelta:
    return inference_pb2.GenerateDelta(
        request_id=delta.request_id,
        choice=delta.choice,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=[logprobs_to_wire(token_id, logprobs) for token_id, logprobs in delta.logprobs],
        finish_reason=finish_to_wire(delta.finish_reason),
        stop=delta.stop,
        usage=None if delta.usage is None else usage_to_wire(delta.usage),
        ledger=None if delta.ledger is None else ledger_to_wire(delta.ledger),
    )


def delta_from_wire(wire: inference_pb2.GenerateDelta) -> Delta:
    logprobs: list[tuple[int, PositionLogprobs]] = [
        (position.chosen.token_id, logprobs_from_wire(position)) for position in wire.logprobs
    ]
    return Delta(
        request_id=wire.request_id,
        choice=wire.choice,
        text=wire.text,
        token_ids=tuple(wire.token_ids),
        logprobs=tuple(logprobs),
        finish_reason=finish_from_wire(wire.finish_reason),
        stop=wire.stop,
        usage=usage_from_wire(wire.usage) if wire.HasField("usage") else None,
        ledger=ledger_from_wire(wire.ledger) if wire.HasField("ledger") else None,
    )


def cancel_outcome_to_wire(outcome: CancelOutcome) -> inference_pb2.CancelResponse:
    return inference_pb2.CancelResponse(**same(CancelOutcome, outcome))


def cancel_outcome_from_wire(wire: inference_pb2.CancelResponse) -> CancelOutcome:
    return CancelOutcome(**same(CancelOutcome, wire))


def model_to_wire(info: ModelInfo) -> inference_pb2.ModelInfo:
    plain = same(ModelInfo, info, besides=("default_sampling",))
    return inference_pb2.ModelInfo(default_sampling=sampling_to_wire(info.default_sampling), **plain)


def model_from_wire(wire: inference_pb2.ModelInfo) -> ModelInfo:
    plain = same(ModelInfo, wire, besides=("default_sampling",))
    return ModelInfo(default_sampling=sampling_from_wire(wire.default_sampling), **plain)


def cluster_to_wire(info: ClusterInfo) -> inference_pb2.ClusterInfo:
    instances = [inference_pb2.InstanceInfo(**same(InstanceInfo, one)) for one in info.instances]
    return inference_pb2.ClusterInfo(instances=instances, **same(ClusterInfo, info, besides=("instances",)))


def cluster_from_wire(wire: inference_pb2.ClusterInfo) -> ClusterInfo:
    instances = tuple(InstanceInfo(**same(InstanceInfo, one)) for one in wire.instances)
    return ClusterInfo(instances=instances, **same(ClusterInfo, wire, besides=("instances",)))


def explanation_to_wire(value: Explanation) -> inference_pb2.Explanation:
    plain = same(Explanation, value, besides=("placements", "ledger"))
    wire = inference_pb2.Explanation(ledger=ledger_to_wire(value.ledger), **plain)
    for placement in value.placements:
        slot = wire.placements.add(role=placement.role, chosen=placement.chosen)
        for candidate in placement.candidates:
            slot.candidates.add(instance=candidate.instance, cost=candidate.cost, parts=dict(candidate.parts))
    return wire


def explanation_to_bytes(value: Explanation) -> bytes:
    return explanation_to_wire(value).SerializeToString()


def explanation_from_bytes(data: bytes) -> Explanation:
    """
    Raises:
        InvalidInput: they are no Explanation.
    """
    try:
        return explanation_from_wire(inference_pb2.Explanation.FromString(data))
    except DecodeError as error:
        raise InvalidInput("Explanation", data[:40], "must be a message of this kind") from error


def explanation_from_wire(wire: inference_pb2.Explanation) -> Explanation:
    placements = tuple(
        Placement(p.role, p.chosen, tuple(Candidate(c.instance, c.cost, dict(c.parts)) for c in p.candidates))
        for p in wire.placements
    )
    plain = same(Explanation, wire, besides=("placements", "ledger"))
    return Explanation(placements=placements, ledger=ledger_from_wire(wire.ledger), **plain)
