"""Names of blocks: chained hashes that are equal in every process, language and byte order.

    root    = H(model fingerprint, block_tokens, kv_dtype, tenant)     each length-prefixed
    hash_i  = H(hash_{i-1} || token ids of block i as little-endian int32),  hash_{-1} = root

with H = BLAKE2b of 16 bytes, personalised ``tandem-kv``. The tenant is in the root, so tenants never share blocks.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

from common.errors import InvalidInput

HASH_CONTRACT = "blake2b128-i32le-v1"
HASH_BYTES = 16
_PERSON = b"tandem-kv"


def root_hash(model_fingerprint: str, block_tokens: int, kv_dtype: str, tenant: str) -> bytes:
    """The parent of every first block, 16 bytes."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES, person=_PERSON)
    for part in (HASH_CONTRACT, model_fingerprint, str(block_tokens), kv_dtype, tenant):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "little"))
        digest.update(encoded)
    return digest.digest()


def chain_hashes(root: bytes, token_ids: Sequence[int], block_tokens: int) -> list[bytes]:
    """One hash per full block of `token_ids`; tokens after the last full block have no name.

    Raises:
        InvalidInput: a token id is not an int32.
    """
    try:
        tokens = array("i", token_ids)
    except OverflowError as error:
        offender = next(token for token in token_ids if not -(2**31) <= token < 2**31)
        raise InvalidInput("token_ids", offender, "must fit into 32 bits") from error
    if sys.byteorder == "big":
        tokens.byteswap()
    data = memoryview(tokens).cast("B")
    block_bytes = block_tokens * tokens.itemsize
    hashes: list[bytes] = []
    parent = root
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        digest = hashlib.blake2b(parent, digest_size=HASH_BYTES, person=_PERSON)
        digest.update(data[start : start + block_bytes])
        parent = digest.digest()
        hashes.append(parent)
    return hashes
