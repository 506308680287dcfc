"""Requests of these tests, and what the fake workers' only right answer to them is."""

from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from tests.fakes.workers import VOCAB_TOKENS

PROMPT = tuple(range(10, 60))


def ask(max_tokens: int = 20, seed: int = 3, prompt: tuple[int, ...] = PROMPT, **more: object) -> GenerateRequest:
    return GenerateRequest(
        token_ids=prompt,
        sampling=SamplingOptions(seed=seed),
        stopping=Stopping(max_tokens=max_tokens, ignore_eos=True),
        **more,
    )


def right(count: int, seed: int = 3, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """What the fakes draw, spelled out anew."""
    return [(seed * 131 + p * 7919) % (VOCAB_TOKENS - 10) + 10 for p in range(len(prompt), len(prompt) + count)]
