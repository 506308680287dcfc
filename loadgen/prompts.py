"""Prompts as token ids, built from hash ids so that prefixes repeat exactly where the trace says they do.

A block's ids are a function of (seed, hash id) alone: equal hashes give equal text, in any process and any order.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from common.errors import InvalidInput
from loadgen.traces.row import Row

# Keys of prompts without hashes, far from a trace's own ids, which are small and dense.
UNIQUE_KEY = 1 << 62
SHARED_KEY = 1 << 61
MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that prompts are made of: the middle of the vocabulary, since control tokens stand at its ends."""

    low: int
    high: int  # exclusive

    @classmethod
    def of(cls, vocab_tokens: int) -> "Vocabulary":
        """For a model whose ids 0 to `vocab_tokens` have a token."""
        if vocab_tokens < 16:
            raise InvalidInput("vocab_tokens", vocab_tokens, "at least 16")
        return cls(vocab_tokens // 16, vocab_tokens - vocab_tokens // 16)


def block_ids(vocabulary: Vocabulary, seed: int, key: int, count: int) -> list[int]:
    """The first `count` ids of the endless text named `key`: a shorter count is a prefix of a longer one."""
    # Philox takes (seed, key) as its own key: much cheaper than seeding another generator for each block.
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, key & MASK], dtype=np.uint64)))
    ids: list[int] = stream.integers(vocabulary.low, vocabulary.high, size=count).tolist()
    return ids


def scaled_tokens(tokens: int, scale: Fraction) -> int:
    """A length times `scale`, rounded up: nothing scales to zero unless it was zero."""
    return -(-tokens * scale.numerator // scale.denominator)


def scaled_row(row: Row, scale: Fraction) -> Row:
    """The row with every length scaled. Block lengths scale too, so that the share of repeated text stays the same."""
    if scale <= 0:
        raise InvalidInput("scale-lengths", scale, "above 0")
    block_tokens = scaled_tokens(row.hash_block_tokens, scale)
    prompt_tokens = scaled_tokens(row.prompt_tokens, scale)
    if row.hash_ids:
        # Where a block does not scale to a whole number of tokens, the prompt keeps its blocks and moves with them.
        full_blocks = row.prompt_tokens // row.hash_block_tokens
        rest = scaled_tokens(row.prompt_tokens - full_blocks * row.hash_block_tokens, scale)
        prompt_tokens = full_blocks * block_tokens + min(rest, block_tokens)
    return Row(
        prompt_tokens=prompt_tokens,
        output_tokens=max(1, scaled_tokens(row.output_tokens, scale)),
        arrival_s=row.arrival_s,
        hash_ids=row.hash_ids,
        hash_block_tokens=block_tokens,
    )


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Without hashes: every prompt begins with one of `groups` prefixes of `tokens`, as system prompts do."""

    tokens: int = 0
    groups: int = 1


def prompt_ids(row: Row, index: int, seed: int, vocabulary: Vocabulary, shared: SharedPrefix) -> list[int]:
    """The `row.prompt_tokens` ids of request `index` of a run."""
    ids: list[int] = []
    if row.hash_ids:
        for key in row.hash_ids:
            ids += block_ids(vocabulary, seed, key, min(row.hash_block_tokens, row.prompt_tokens - len(ids)))
        return ids
    if shared.tokens:
        group = int(np.random.default_rng((seed, index)).integers(shared.groups))
        ids = block_ids(vocabulary, seed, SHARED_KEY + group, min(shared.tokens, row.prompt_tokens))
    return ids + block_ids(vocabulary, seed, UNIQUE_KEY + index, row.prompt_tokens - len(ids))
