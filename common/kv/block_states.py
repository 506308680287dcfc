"""The states of KV memory and every legal move between them.

    pool block   free ──allocate──> owned ──publish──> cached
                  ^                   │                   │
                  └──last reference───┘                   │
                  └─────────────evict, unreferenced───────┘

    arena slot   free ──take──> landing ──finish──> free
                                   └──drain──> draining ──handle ended──> free

A lease is no state of its own: it holds one reference on each of its blocks, and neither move to free is legal while
references are held.
"""

from enum import Enum

from common.errors import InternalError


class BlockState(Enum):
    FREE = "free"  # nobody's; content is meaningless
    OWNED = "owned"  # written by, and private to, those who hold references
    CACHED = "cached"  # complete, named by its chain hash, never written again; shared


class SlotState(Enum):
    FREE = "free"  # no read is under way into it
    LANDING = "landing"  # a wanted read is under way, or landed and not yet copied out
    DRAINING = "draining"  # nobody wants the data, but the read has not ended and may still store


LEGAL_BLOCK_MOVES = frozenset(
    {
        (BlockState.FREE, BlockState.OWNED),
        (BlockState.OWNED, BlockState.FREE),
        (BlockState.OWNED, BlockState.CACHED),
        (BlockState.CACHED, BlockState.FREE),
    }
)
LEGAL_SLOT_MOVES = frozenset(
    {
        (SlotState.FREE, SlotState.LANDING),
        (SlotState.LANDING, SlotState.FREE),
        (SlotState.LANDING, SlotState.DRAINING),
        (SlotState.DRAINING, SlotState.FREE),
    }
)


def check_block_move(block: int, before: BlockState, after: BlockState) -> None:
    """Raise InternalError unless the move is legal."""
    if (before, after) not in LEGAL_BLOCK_MOVES:
        raise InternalError(f"block {block} cannot go from {before.value} to {after.value}")


def check_slot_move(slot: int, before: SlotState, after: SlotState) -> None:
    """Raise InternalError unless the move is legal."""
    if (before, after) not in LEGAL_SLOT_MOVES:
        raise InternalError(f"slot {slot} cannot go from {before.value} to {after.value}")
