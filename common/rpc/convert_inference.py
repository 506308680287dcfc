"""The public call: wire <-> plain data, both ways."""

from common.request import PositionLogprobs, Sampling
from common.rpc.convert import (
    finish_from_wire,
    finish_to_wire,
    logprobs_from_wire,
    logprobs_to_wire,
    sampling_from_wire,
    sampling_to_wire,
)
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
    return types_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


def usage_from_wire(wire: types_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=wire.prompt_tokens,
        completion_tokens=wire.completion_tokens,
        cached_tokens=wire.cached_tokens,
        reasoning_tokens=wire.reasoning_tokens,
        drafted_tokens=wire.drafted_tokens,
        accepted_tokens=wire.accepted_tokens,
    )


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


def model_to_wire(info: ModelInfo) -> inference_pb2.ModelInfo:
    default: Sampling = info.default_sampling
    return inference_pb2.ModelInfo(
        model=info.model,
        fingerprint=info.fingerprint,
        vocab_tokens=info.vocab_tokens,
        context_tokens=info.context_tokens,
        block_tokens=info.block_tokens,
        draft_tokens=info.draft_tokens,
        default_sampling=sampling_to_wire(default),
        has_tokenizer=info.has_tokenizer,
    )


def model_from_wire(wire: inference_pb2.ModelInfo) -> ModelInfo:
    return ModelInfo(
        model=wire.model,
        fingerprint=wire.fingerprint,
        vocab_tokens=wire.vocab_tokens,
        context_tokens=wire.context_tokens,
        block_tokens=wire.block_tokens,
        draft_tokens=wire.draft_tokens,
        default_sampling=sampling_from_wire(wire.default_sampling),
        has_tokenizer=wire.has_tokenizer,
    )


def cluster_to_wire(info: ClusterInfo) -> inference_pb2.ClusterInfo:
    wire = inference_pb2.ClusterInfo(
        model=info.model,
        scheduler=info.scheduler,
        live_requests=info.live_requests,
        waiting_requests=info.waiting_requests,
        waiting_tokens=info.waiting_tokens,
    )
    for one in info.instances:
        wire.instances.add(
            instance=one.instance,
            role=one.role,
            group=one.group,
            address=one.address,
            incarnation=one.incarnation,
            state=one.state,
            queued_tokens=one.queued_tokens,
            running=one.running,
            free_blocks=one.free_blocks,
            total_blocks=one.total_blocks,
            step_ms=one.step_ms,
            queued=one.queued,
            max_running=one.max_running,
            tokens_per_s=one.tokens_per_s,
            busy=one.busy,
            report_age_ms=one.report_age_ms,
        )
    return wire


def cluster_from_wire(wire: inference_pb2.ClusterInfo) -> ClusterInfo:
    instances = tuple(
        InstanceInfo(
            instance=one.instance,
            role=one.role,
            group=one.group,
            address=one.address,
            incarnation=one.incarnation,
            state=one.state,
            queued_tokens=one.queued_tokens,
            running=one.running,
            free_blocks=one.free_blocks,
            total_blocks=one.total_blocks,
            step_ms=one.step_ms,
            queued=one.queued,
            max_running=one.max_running,
            tokens_per_s=one.tokens_per_s,
            busy=one.busy,
            report_age_ms=one.report_age_ms,
        )
        for one in wire.instances
    )
    return ClusterInfo(
        model=wire.model,
        instances=instances,
        scheduler=wire.scheduler,
        live_requests=wire.live_requests,
        waiting_requests=wire.waiting_requests,
        waiting_tokens=wire.waiting_tokens,
    )


def explanation_to_wire(value: Explanation) -> inference_pb2.Explanation:
    wire = inference_pb2.Explanation(
        request_id=value.request_id,
        ledger=ledger_to_wire(value.ledger),
        resumes=value.resumes,
        outcome=value.outcome,
        predicted_cached_blocks=value.predicted_cached_blocks,
        actual_cached_blocks=value.actual_cached_blocks,
        trace_id=value.trace_id,
    )
    for placement in value.placements:
        slot = wire.placements.add(role=placement.role, chosen=placement.chosen)
        for candidate in placement.candidates:
            slot.candidates.add(instance=candidate.instance, cost=candidate.cost, parts=dict(candidate.parts))
    return wire


def explanation_from_wire(wire: inference_pb2.Explanation) -> Explanation:
    placements = tuple(
        Placement(p.role, p.chosen, tuple(Candidate(c.instance, c.cost, dict(c.parts)) for c in p.candidates))
        for p in wire.placements
    )
    return Explanation(
        request_id=wire.request_id,
        placements=placements,
        ledger=ledger_from_wire(wire.ledger),
        resumes=wire.resumes,
        outcome=wire.outcome,
        predicted_cached_blocks=wire.predicted_cached_blocks,
        actual_cached_blocks=wire.actual_cached_blocks,
        trace_id=wire.trace_id,
    )
