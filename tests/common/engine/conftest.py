from collections.abc import Iterator

import pytest

from common.engine.settings import DecodeSettings, EngineShape, PrefillSettings
from tests.fakes.engines import MakePair, Pair
from tests.fakes.scripted_model import ScriptedModel


@pytest.fixture
def make_pair() -> Iterator[MakePair]:
    """Pairs over the scripted model, with small blocks; every one must be idle at the test's end."""
    pairs: list[Pair] = []

    def make(
        model: ScriptedModel | None = None,
        *,
        drafts: int = 0,
        chunk: int = 16,
        prefill_blocks: int = 64,
        decode_blocks: int = 64,
        context: int = 256,
        running: int = 8,
        queued: int = 1024,
        step_tokens: int = 64,
        growth: int = 8,
        lease_s: float = 5.0,
        aging_tokens_per_s: float = 100.0,
    ) -> Pair:
        def shape(blocks: int) -> EngineShape:
            return EngineShape(
                total_blocks=blocks,
                context_tokens=context,
                block_tokens=8,
                max_running=running,
                max_queued=queued,
                max_step_tokens=step_tokens,
                draft_tokens=drafts,
            )

        pair = Pair(
            model or ScriptedModel(),
            PrefillSettings(shape(prefill_blocks), chunk, aging_tokens_per_s, lease_s),
            DecodeSettings(shape(decode_blocks), growth),
        )
        pairs.append(pair)
        return pair

    yield make
    for pair in pairs:
        pair.check_idle()
