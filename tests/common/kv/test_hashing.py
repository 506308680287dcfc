import hashlib
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidInput
from common.kv.hashing import HASH_CONTRACT, chain_hashes, root_hash

ROOT = root_hash("model", 4, "bfloat16", "")
IN_A_PROCESS = """
from common.kv.hashing import chain_hashes, root_hash
print([h.hex() for h in chain_hashes(root_hash("model", 4, "bfloat16", "t\\u00e9nant"), list(range(19)), 4)])
"""


def test_hash_follows_its_documented_formula():
    parts = b"".join(struct.pack("<I", len(p)) + p for p in (HASH_CONTRACT.encode(), b"model", b"4", b"bfloat16", b""))
    assert hashlib.blake2b(parts, digest_size=16, person=b"tandem-kv").digest() == ROOT
    first = hashlib.blake2b(ROOT + struct.pack("<4i", 7, 8, 9, 2**31 - 1), digest_size=16, person=b"tandem-kv").digest()
    assert chain_hashes(ROOT, [7, 8, 9, 2**31 - 1, 5], 4) == [first]


def test_known_value_never_changes():
    """Equal to what any other implementation of the contract computes; a change needs a new HASH_CONTRACT."""
    assert chain_hashes(ROOT, range(8), 4)[-1].hex() == "3c286a1be3666a96f9351ddc4a6ae621"


def test_hashes_are_equal_whatever_the_hash_seed():
    seen = set()
    for seed in ("0", "1", "4294967295"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout)
    here = [h.hex() for h in chain_hashes(root_hash("model", 4, "bfloat16", "ténant"), list(range(19)), 4)]
    assert seen == {f"{here}\n"}


@pytest.mark.parametrize(
    "other",
    [
        ("model2", 4, "bfloat16", ""),
        ("model", 8, "bfloat16", ""),
        ("model", 4, "float32", ""),
        ("model", 4, "bfloat16", "t"),
    ],
)
def test_every_part_of_the_root_separates(other):
    assert root_hash(*other) != ROOT


def test_parts_of_the_root_cannot_run_into_each_other():
    assert root_hash("a", 1, "b", "c") != root_hash("a1", 1, "", "c") != root_hash("a", 11, "b", "c")


@settings(max_examples=50)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30), st.integers(1, 5), st.data())
def test_hash_names_the_whole_prefix(tokens, block_tokens, data):
    hashes = chain_hashes(ROOT, tokens, block_tokens)
    assert len(hashes) == len(tokens) // block_tokens
    assert len(set(hashes)) == len(hashes)
    if hashes:
        changed = data.draw(st.integers(0, len(hashes) * block_tokens - 1))
        other = list(tokens)
        other[changed] ^= 1
        again = chain_hashes(ROOT, other, block_tokens)
        same = changed // block_tokens
        assert again[:same] == hashes[:same]
        assert all(a != b for a, b in zip(again[same:], hashes[same:], strict=True))


def test_token_id_beyond_32_bits_is_refused():
    with pytest.raises(InvalidInput, match="token_ids = 2147483648"):
        chain_hashes(ROOT, [1, 2**31], 2)
