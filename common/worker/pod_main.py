"""What both roles' pod processes do."""

from collections.abc import Sequence

from common.config.load import load_cluster
from common.config.place import Role, parallel_of, ranks
from common.errors import TandemError
from common.telemetry.logs import configure_logs, get_log
from common.worker.arguments import parse_arguments, rank_command
from common.worker.pod import run_pod
from common.worker.shared_memory import clear_left_over
from common.worker.tether import tether_to_parent

log = get_log(__name__)


def pod_main(role: Role, rank_module: str, argv: Sequence[str]) -> int:
    """Check the configuration once for all ranks, then run them; returns the exit code."""
    arguments = parse_arguments(role, argv)
    configure_logs(arguments.pod.name, form=arguments.log_format)
    try:
        config = load_cluster(arguments.config)
        places = ranks(parallel_of(config, role), arguments.pod)
    except TandemError as error:
        log.error(str(error))
        return 2
    worker = config.prefill.worker if role == "prefill" else config.decode.worker
    if arguments.tethered:
        tether_to_parent(worker.drain_timeout_s)
    if arguments.clear_shared_memory is not None:
        clear_left_over(arguments.clear_shared_memory)
    commands = [rank_command(arguments, place, rank_module, worker.threads) for place in places]
    return run_pod(commands, worker.drain_timeout_s)
