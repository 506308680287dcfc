"""How many leading blocks of a prompt each instance holds. A hint: without it placement goes by load."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from common.state.prefix_index import LookupAnswer
from services.scheduler.fleet import Fleet


class PrefixLookup(Protocol):
    """`common.state.prefix_index.PrefixIndex`, or what stands for it in a test."""

    async def lookup(self, hashes: Sequence[bytes]) -> LookupAnswer:
        """Never raises for want of an answer and never takes longer than its budget."""
        ...


def usable_blocks(answer: LookupAnswer, fleet: Fleet) -> Mapping[str, int]:
    """Blocks by instance, without entries of incarnations whose memory is gone."""
    blocks = {}
    for held in answer.held:
        known = fleet.get(held.instance)
        if known is not None and known.incarnation == held.incarnation:
            blocks[held.instance] = held.blocks
    return blocks
