"""From the cluster's configuration to what the engines are told."""

from common.config.cluster import ClusterConfig
from common.engine.settings import DecodeSettings, EngineShape, PrefillSettings


def prefill_settings(config: ClusterConfig) -> PrefillSettings:
    prefill = config.prefill
    shape = EngineShape(
        total_blocks=prefill.blocks,
        context_tokens=config.context_tokens,
        block_tokens=config.block_tokens,
        max_running=prefill.max_running,
        max_queued=prefill.max_queued,
        max_step_tokens=prefill.chunk_tokens,
        draft_tokens=config.draft_tokens,
    )
    return PrefillSettings(shape, chunk_tokens=prefill.chunk_tokens, lease_s=prefill.lease_s)


def decode_settings(config: ClusterConfig) -> DecodeSettings:
    decode = config.decode
    shape = EngineShape(
        total_blocks=decode.blocks,
        context_tokens=config.context_tokens,
        block_tokens=config.block_tokens,
        max_running=decode.max_running,
        max_queued=decode.max_queued,
        max_step_tokens=decode.max_running * (1 + config.draft_tokens),
        draft_tokens=config.draft_tokens,
    )
    return DecodeSettings(shape, growth_tokens=config.block_tokens)
