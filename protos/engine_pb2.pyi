from protos import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Compatibility(_message.Message):
    __slots__ = ("model_fingerprint", "hash_contract", "kv_dtype", "block_tokens", "latent_layers", "latent_width", "draft_tokens")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HASH_CONTRACT_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATENT_LAYERS_FIELD_NUMBER: _ClassVar[int]
    LATENT_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    hash_contract: str
    kv_dtype: str
    block_tokens: int
    latent_layers: int
    latent_width: int
    draft_tokens: int
    def __init__(self, model_fingerprint: _Optional[str] = ..., hash_contract: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., block_tokens: _Optional[int] = ..., latent_layers: _Optional[int] = ..., latent_width: _Optional[int] = ..., draft_tokens: _Optional[int] = ...) -> None: ...

class InstanceDescription(_message.Message):
    __slots__ = ("instance", "role", "group", "incarnation", "compatibility", "total_blocks", "context_tokens", "max_running", "tokens_per_s")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    instance: str
    role: str
    group: str
    incarnation: int
    compatibility: Compatibility
    total_blocks: int
    context_tokens: int
    max_running: int
    tokens_per_s: float
    def __init__(self, instance: _Optional[str] = ..., role: _Optional[str] = ..., group: _Optional[str] = ..., incarnation: _Optional[int] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., total_blocks: _Optional[int] = ..., context_tokens: _Optional[int] = ..., max_running: _Optional[int] = ..., tokens_per_s: _Optional[float] = ...) -> None: ...

class WorkLimits(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "stop_token_ids")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("work_id", "scheduler", "token_ids", "prompt_tokens", "sampling", "limits", "logprobs", "tenant", "priority", "deadline_ms")
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    scheduler: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_tokens: int
    sampling: _types_pb2.Sampling
    limits: WorkLimits
    logprobs: int
    tenant: str
    priority: int
    deadline_ms: int
    def __init__(self, work_id: _Optional[str] = ..., scheduler: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_types_pb2.Sampling, _Mapping]] = ..., limits: _Optional[_Union[WorkLimits, _Mapping]] = ..., logprobs: _Optional[int] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("work", "keep_for_decode")
    WORK_FIELD_NUMBER: _ClassVar[int]
    KEEP_FOR_DECODE_FIELD_NUMBER: _ClassVar[int]
    work: Work
    keep_for_decode: bool
    def __init__(self, work: _Optional[_Union[Work, _Mapping]] = ..., keep_for_decode: _Optional[bool] = ...) -> None: ...

class GeneratedToken(_message.Message):
    __slots__ = ("position", "token_id", "logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_id: int
    logprobs: _types_pb2.PositionLogprobs
    def __init__(self, position: _Optional[int] = ..., token_id: _Optional[int] = ..., logprobs: _Optional[_Union[_types_pb2.PositionLogprobs, _Mapping]] = ...) -> None: ...

class PrefillEvent(_message.Message):
    __slots__ = ("started", "first_token", "failed")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    started: PrefillStarted
    first_token: PrefillFirstToken
    failed: _types_pb2.Failure
    def __init__(self, started: _Optional[_Union[PrefillStarted, _Mapping]] = ..., first_token: _Optional[_Union[PrefillFirstToken, _Mapping]] = ..., failed: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class PrefillStarted(_message.Message):
    __slots__ = ("cached_tokens", "queue_s", "blocks")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    queue_s: float
    blocks: int
    def __init__(self, cached_tokens: _Optional[int] = ..., queue_s: _Optional[float] = ..., blocks: _Optional[int] = ...) -> None: ...

class PrefillFirstToken(_message.Message):
    __slots__ = ("token", "finish_reason", "prefill_s")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    token: GeneratedToken
    finish_reason: _types_pb2.FinishReason
    prefill_s: float
    def __init__(self, token: _Optional[_Union[GeneratedToken, _Mapping]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., prefill_s: _Optional[float] = ...) -> None: ...

class TransferSource(_message.Message):
    __slots__ = ("instance", "address", "incarnation")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    instance: str
    address: str
    incarnation: int
    def __init__(self, instance: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class TransferRequest(_message.Message):
    __slots__ = ("open", "release", "abort")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    open: TransferOpen
    release: TransferRelease
    abort: TransferAbort
    def __init__(self, open: _Optional[_Union[TransferOpen, _Mapping]] = ..., release: _Optional[_Union[TransferRelease, _Mapping]] = ..., abort: _Optional[_Union[TransferAbort, _Mapping]] = ...) -> None: ...

class TransferOpen(_message.Message):
    __slots__ = ("work_id", "reader", "incarnation", "compatibility", "first_block")
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    reader: str
    incarnation: int
    compatibility: Compatibility
    first_block: int
    def __init__(self, work_id: _Optional[str] = ..., reader: _Optional[str] = ..., incarnation: _Optional[int] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., first_block: _Optional[int] = ...) -> None: ...

class TransferRelease(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransferAbort(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class TransferEvent(_message.Message):
    __slots__ = ("hello", "blocks", "handoff", "failed")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HANDOFF_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    hello: TransferHello
    blocks: BlocksReady
    handoff: Handoff
    failed: _types_pb2.Failure
    def __init__(self, hello: _Optional[_Union[TransferHello, _Mapping]] = ..., blocks: _Optional[_Union[BlocksReady, _Mapping]] = ..., handoff: _Optional[_Union[Handoff, _Mapping]] = ..., failed: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class TransferHello(_message.Message):
    __slots__ = ("agent_metadata", "incarnation", "pool_address", "block_bytes", "device", "memory", "blocks")
    AGENT_METADATA_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    POOL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    agent_metadata: bytes
    incarnation: int
    pool_address: int
    block_bytes: int
    device: int
    memory: str
    blocks: int
    def __init__(self, agent_metadata: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., pool_address: _Optional[int] = ..., block_bytes: _Optional[int] = ..., device: _Optional[int] = ..., memory: _Optional[str] = ..., blocks: _Optional[int] = ...) -> None: ...

class ReadyBlock(_message.Message):
    __slots__ = ("index", "block", "tag", "chain_hash_low", "tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    CHAIN_HASH_LOW_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    block: int
    tag: int
    chain_hash_low: int
    tokens: int
    def __init__(self, index: _Optional[int] = ..., block: _Optional[int] = ..., tag: _Optional[int] = ..., chain_hash_low: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class BlocksReady(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[ReadyBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[ReadyBlock, _Mapping]]] = ...) -> None: ...

class Handoff(_message.Message):
    __slots__ = ("first_token", "draft_token_ids", "finish_reason")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    first_token: GeneratedToken
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: _types_pb2.FinishReason
    def __init__(self, first_token: _Optional[_Union[GeneratedToken, _Mapping]] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ...) -> None: ...

class StepsRequest(_message.Message):
    __slots__ = ("scheduler",)
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    def __init__(self, scheduler: _Optional[str] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("work", "source")
    WORK_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    work: Work
    source: TransferSource
    def __init__(self, work: _Optional[_Union[Work, _Mapping]] = ..., source: _Optional[_Union[TransferSource, _Mapping]] = ...) -> None: ...

class DecodeAdmission(_message.Message):
    __slots__ = ("queued_ahead",)
    QUEUED_AHEAD_FIELD_NUMBER: _ClassVar[int]
    queued_ahead: int
    def __init__(self, queued_ahead: _Optional[int] = ...) -> None: ...

class WorkTokens(_message.Message):
    __slots__ = ("work_id", "tokens", "finish_reason", "drafted", "accepted")
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    tokens: _containers.RepeatedCompositeFieldContainer[GeneratedToken]
    finish_reason: _types_pb2.FinishReason
    drafted: int
    accepted: int
    def __init__(self, work_id: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[GeneratedToken, _Mapping]]] = ..., finish_reason: _Optional[_Union[_types_pb2.FinishReason, str]] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...

class WorkJoined(_message.Message):
    __slots__ = ("work_id", "queue_s", "exposed_transfer_s")
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    queue_s: float
    exposed_transfer_s: float
    def __init__(self, work_id: _Optional[str] = ..., queue_s: _Optional[float] = ..., exposed_transfer_s: _Optional[float] = ...) -> None: ...

class WorkPreempted(_message.Message):
    __slots__ = ("work_id",)
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    def __init__(self, work_id: _Optional[str] = ...) -> None: ...

class WorkFailed(_message.Message):
    __slots__ = ("work_id", "failure")
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    failure: _types_pb2.Failure
    def __init__(self, work_id: _Optional[str] = ..., failure: _Optional[_Union[_types_pb2.Failure, _Mapping]] = ...) -> None: ...

class StepEvent(_message.Message):
    __slots__ = ("incarnation", "step", "tokens", "joined", "preempted", "failed")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    step: int
    tokens: _containers.RepeatedCompositeFieldContainer[WorkTokens]
    joined: _containers.RepeatedCompositeFieldContainer[WorkJoined]
    preempted: _containers.RepeatedCompositeFieldContainer[WorkPreempted]
    failed: _containers.RepeatedCompositeFieldContainer[WorkFailed]
    def __init__(self, incarnation: _Optional[int] = ..., step: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[WorkTokens, _Mapping]]] = ..., joined: _Optional[_Iterable[_Union[WorkJoined, _Mapping]]] = ..., preempted: _Optional[_Iterable[_Union[WorkPreempted, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[WorkFailed, _Mapping]]] = ...) -> None: ...

class CancelWork(_message.Message):
    __slots__ = ("work_id",)
    WORK_ID_FIELD_NUMBER: _ClassVar[int]
    work_id: str
    def __init__(self, work_id: _Optional[str] = ...) -> None: ...

class CancelWorkReply(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...
