"""The tag of a block: what it holds, where in which sequence, and whose memory it is in.

A reader that was too slow finds other bytes, another sequence's block or another incarnation, and each changes the tag.
"""

import hashlib

CHAIN_HASH_LOW_BYTES = 8  # as much of a chain hash as announcements carry


def tag(content_hash: int, chain_hash: bytes, incarnation: int) -> int:
    """64 bits over the block's content hash, the first 8 bytes of its chain hash and the writer's incarnation.

    `chain_hash` is empty for a partial block, which no other sequence shares. The content hash leaves out what may
    differ between equal blocks: the last MTP slot of a full block, which depends on the next block's first token.
    """
    low = chain_hash[:CHAIN_HASH_LOW_BYTES]
    digest = hashlib.blake2b(digest_size=8, person=b"tandem-tag")
    digest.update((content_hash & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little"))
    digest.update(incarnation.to_bytes(8, "little"))
    digest.update(low)
    return int.from_bytes(digest.digest(), "little")


def chain_hash_low(chain_hash: bytes) -> int:
    """What an announcement carries of a chain hash; 0 for a partial block."""
    return int.from_bytes(chain_hash[:CHAIN_HASH_LOW_BYTES], "little")


def skipped_words(block_bytes: int, mtp_slot_bytes: int, full: bool) -> tuple[tuple[int, int], ...]:
    """Ranges of int32 words that the content hash leaves out: in a full block the last slot of the MTP layer.

    The MTP layer is the last layer of a block, so that slot is the block's end; `mtp_slot_bytes` is 0 without one.
    """
    if not full or mtp_slot_bytes == 0:
        return ()
    return (((block_bytes - mtp_slot_bytes) // 4, block_bytes // 4),)
