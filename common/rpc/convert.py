"""Worker messages: wire <-> plain data, both ways.

Deadlines are monotonic seconds of one process inside and a remaining budget on the wire, so every function that
meets one takes the clock's reading.
"""

from types import MappingProxyType

from common.errors import InvalidInput
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
from common.rpc.errors import from_failure, to_failure
from common.rpc.worker_data import (
    DecodeRequest,
    InstanceDescription,
    PrefillEvent,
    PrefillFirstToken,
    PrefillStarted,
    StepBatch,
    TransferSource,
    WorkEvent,
    WorkFailed,
    WorkJoined,
    WorkPreempted,
    WorkTokens,
)
from protos import engine_pb2, types_pb2

_FINISH_TO_WIRE = {
    None: types_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}
_FINISH_FROM_WIRE: dict[int, FinishReason | None] = {wire: reason for reason, wire in _FINISH_TO_WIRE.items()}


def finish_to_wire(reason: FinishReason | None) -> types_pb2.FinishReason:
    return _FINISH_TO_WIRE[reason]


def finish_from_wire(wire: int) -> FinishReason | None:
    if wire not in _FINISH_FROM_WIRE:
        raise InvalidInput("finish_reason", wire, "one of FinishReason")
    return _FINISH_FROM_WIRE[wire]


def budget_ms(deadline_s: float | None, now_s: float) -> int:
    """Remaining budget; 0 is no deadline, so one that passed still has 1 ms."""
    if deadline_s is None:
        return 0
    return max(1, round((deadline_s - now_s) * 1000))


def deadline_s(budget: int, now_s: float) -> float | None:
    return now_s + budget / 1000 if budget else None


def sampling_to_wire(sampling: Sampling) -> types_pb2.Sampling:
    return types_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        seed=sampling.seed,
    )


def sampling_from_wire(wire: types_pb2.Sampling) -> Sampling:
    """Every field must be set: between processes of ours nothing is left to a default."""
    for name in _SAMPLING_FIELDS:
        if not wire.HasField(name):
            raise InvalidInput(f"sampling.{name}", "unset", "set between scheduler and workers")
    return Sampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        repetition_penalty=wire.repetition_penalty,
        logit_bias=MappingProxyType(dict(wire.logit_bias)),
        seed=wire.seed,
    )


_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)


def work_to_wire(work: Work, now_s: float) -> engine_pb2.Work:
    return engine_pb2.Work(
        work_id=work.work_id,
        scheduler=work.scheduler,
        token_ids=work.token_ids,
        prompt_tokens=work.prompt_tokens,
        sampling=sampling_to_wire(work.sampling),
        limits=engine_pb2.WorkLimits(
            max_tokens=work.limits.max_tokens,
            min_tokens=work.limits.min_tokens,
            stop_token_ids=sorted(work.limits.stop_token_ids),
        ),
        logprobs=work.logprobs,
        tenant=work.tenant,
        priority=work.priority,
        deadline_ms=budget_ms(work.deadline_s, now_s),
    )


def work_from_wire(wire: engine_pb2.Work, now_s: float) -> Work:
    if not wire.work_id:
        raise InvalidInput("work.work_id", "", "not empty")
    if not 1 <= wire.prompt_tokens <= len(wire.token_ids):
        raise InvalidInput("work.prompt_tokens", wire.prompt_tokens, f"1 to {len(wire.token_ids)} (token_ids given)")
    return Work(
        work_id=wire.work_id,
        scheduler=wire.scheduler,
        token_ids=tuple(wire.token_ids),
        prompt_tokens=wire.prompt_tokens,
        sampling=sampling_from_wire(wire.sampling),
        limits=Limits(
            max_tokens=wire.limits.max_tokens,
            min_tokens=wire.limits.min_tokens,
            stop_token_ids=frozenset(wire.limits.stop_token_ids),
        ),
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
        tenant=wire.tenant,
        priority=wire.priority,
        deadline_s=deadline_s(wire.deadline_ms, now_s),
    )


def logprobs_to_wire(token_id: int, logprobs: PositionLogprobs) -> types_pb2.PositionLogprobs:
    return types_pb2.PositionLogprobs(
        chosen=types_pb2.TokenLogprob(token_id=token_id, logprob=logprobs.chosen),
        top=[types_pb2.TokenLogprob(token_id=i, logprob=value) for i, value in logprobs.top],
    )


def logprobs_from_wire(wire: types_pb2.PositionLogprobs) -> PositionLogprobs:
    return PositionLogprobs(chosen=wire.chosen.logprob, top=tuple((t.token_id, t.logprob) for t in wire.top))


def token_to_wire(token: GeneratedToken) -> engine_pb2.GeneratedToken:
    logprobs = None if token.logprobs is None else logprobs_to_wire(token.token_id, token.logprobs)
    return engine_pb2.GeneratedToken(position=token.position, token_id=token.token_id, logprobs=logprobs)


def token_from_wire(wire: engine_pb2.GeneratedToken) -> GeneratedToken:
    logprobs = logprobs_from_wire(wire.logprobs) if wire.HasField("logprobs") else None
    return GeneratedToken(wire.position, wire.token_id, logprobs)


def handoff_to_wire(handoff: Handoff) -> engine_pb2.Handoff:
    return engine_pb2.Handoff(
        first_token=token_to_wire(handoff.first_token),
        draft_token_ids=handoff.draft_token_ids,
        finish_reason=finish_to_wire(handoff.finish_reason),
    )


def handoff_from_wire(wire: engine_pb2.Handoff) -> Handoff:
    return Handoff(token_from_wire(wire.first_token), tuple(wire.draft_token_ids), finish_from_wire(wire.finish_reason))


def compatibility_to_wire(value: Compatibility) -> engine_pb2.Compatibility:
    return engine_pb2.Compatibility(
        model_fingerprint=value.model_fingerprint,
        hash_contract=value.hash_contract,
        kv_dtype=value.kv_dtype,
        block_tokens=value.block_tokens,
        latent_layers=value.latent_layers,
        latent_width=value.latent_width,
        draft_tokens=value.draft_tokens,
    )


def compatibility_from_wire(wire: engine_pb2.Compatibility) -> Compatibility:
    return Compatibility(
        model_fingerprint=wire.model_fingerprint,
        hash_contract=wire.hash_contract,
        kv_dtype=wire.kv_dtype,
        block_tokens=wire.block_tokens,
        latent_layers=wire.latent_layers,
        latent_width=wire.latent_width,
        draft_tokens=wire.draft_tokens,
    )


def description_to_wire(value: InstanceDescription) -> engine_pb2.InstanceDescription:
    return engine_pb2.InstanceDescription(
        instance=value.instance,
        role=value.role,
        group=value.group,
        incarnation=value.incarnation,
        compatibility=compatibility_to_wire(value.compatibility),
        total_blocks=value.total_blocks,
        context_tokens=value.context_tokens,
        max_running=value.max_running,
        tokens_per_s=value.tokens_per_s,
    )


def description_from_wire(wire: engine_pb2.InstanceDescription) -> InstanceDescription:
    return InstanceDescription(
        instance=wire.instance,
        role=wire.role,
        group=wire.group,
        incarnation=wire.incarnation,
        compatibility=compatibility_from_wire(wire.compatibility),
        total_blocks=wire.total_blocks,
        context_tokens=wire.context_tokens,
        max_running=wire.max_running,
        tokens_per_s=wire.tokens_per_s,
    )


def prefill_event_to_wire(event: PrefillEvent) -> engine_pb2.PrefillEvent:
    match event:
        case PrefillStarted():
            started = engine_pb2.PrefillStarted(
                cached_tokens=event.cached_tokens, queue_s=event.queue_s, blocks=event.blocks
            )
            return engine_pb2.PrefillEvent(started=started)
        case PrefillFirstToken():
            first = engine_pb2.PrefillFirstToken(
                token=token_to_wire(event.token),
                finish_reason=finish_to_wire(event.finish_reason),
                prefill_s=event.prefill_s,
            )
            return engine_pb2.PrefillEvent(first_token=first)
        case _:
            return engine_pb2.PrefillEvent(failed=to_failure(event))


def prefill_event_from_wire(wire: engine_pb2.PrefillEvent) -> PrefillEvent:
    match wire.WhichOneof("event"):
        case "started":
            return PrefillStarted(wire.started.cached_tokens, wire.started.queue_s, wire.started.blocks)
        case "first_token":
            first = wire.first_token
            return PrefillFirstToken(
                token_from_wire(first.token), finish_from_wire(first.finish_reason), first.prefill_s
            )
        case "failed":
            return from_failure(wire.failed)
        case _:
            raise InvalidInput("event", "unset", "started, first_token or failed")


def decode_request_to_wire(request: DecodeRequest, now_s: float) -> engine_pb2.DecodeRequest:
    source = engine_pb2.TransferSource(
        instance=request.source.instance, address=request.source.address, incarnation=request.source.incarnation
    )
    return engine_pb2.DecodeRequest(work=work_to_wire(request.work, now_s), source=source)


def decode_request_from_wire(wire: engine_pb2.DecodeRequest, now_s: float) -> DecodeRequest:
    source = TransferSource(wire.source.instance, wire.source.address, wire.source.incarnation)
    return DecodeRequest(work_from_wire(wire.work, now_s), source)


def step_to_wire(batch: StepBatch) -> engine_pb2.StepEvent:
    wire = engine_pb2.StepEvent(incarnation=batch.incarnation, step=batch.step)
    for event in batch.events:
        match event:
            case WorkTokens():
                wire.tokens.add(
                    work_id=event.work_id,
                    tokens=[token_to_wire(token) for token in event.tokens],
                    finish_reason=finish_to_wire(event.finish_reason),
                    drafted=event.drafted,
                    accepted=event.accepted,
                )
            case WorkJoined():
                wire.joined.add(
                    work_id=event.work_id, queue_s=event.queue_s, exposed_transfer_s=event.exposed_transfer_s
                )
            case WorkPreempted():
                wire.preempted.add(work_id=event.work_id)
            case WorkFailed():
                wire.failed.add(work_id=event.work_id, failure=to_failure(event.error))
    return wire


def step_from_wire(wire: engine_pb2.StepEvent) -> StepBatch:
    """Events of one work in the order in which they can have happened: joined, tokens, then its end."""
    events: list[WorkEvent] = [WorkJoined(j.work_id, j.queue_s, j.exposed_transfer_s) for j in wire.joined]
    events += [
        WorkTokens(
            t.work_id,
            tuple(token_from_wire(token) for token in t.tokens),
            finish_from_wire(t.finish_reason),
            t.drafted,
            t.accepted,
        )
        for t in wire.tokens
    ]
    events += [WorkPreempted(p.work_id) for p in wire.preempted]
    events += [WorkFailed(f.work_id, from_failure(f.failure)) for f in wire.failed]
    return StepBatch(wire.incarnation, wire.step, tuple(events))
