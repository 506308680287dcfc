"""What an instance says of itself."""

from common.request import Compatibility
from common.rpc.worker_data import InstanceDescription
from common.worker.rank_main import RankContext


def describe(context: RankContext, compatibility: Compatibility) -> InstanceDescription:
    config, place = context.config, context.place
    pool = config.prefill if place.pod.role == "prefill" else config.decode
    return InstanceDescription(
        instance=place.instance,
        role=place.pod.role,
        group=place.pod.group_name,
        incarnation=context.incarnation,
        compatibility=compatibility,
        total_blocks=pool.blocks,
        context_tokens=config.context_tokens,
        max_running=pool.max_running,
    )
