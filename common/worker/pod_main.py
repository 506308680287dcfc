"""What both roles' pod processes do."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from common.config.address import host_port
from common.config.load import load_cluster
from common.config.place import Role, parallel_of, ranks
from common.errors import TandemError
from common.process.tether import tether_to_parent
from common.telemetry.exporter import MetricsExporter
from common.telemetry.logs import configure_logs, get_log
from common.worker.arguments import parse_arguments, rank_command
from common.worker.pod import run_pod
from common.worker.pod_probes import pod_probes
from common.worker.shared_memory import clear_left_over

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
    if arguments.health_port is None:
        return run_pod(commands, worker.drain_timeout_s)
    first_port = worker.first_metrics_port if arguments.first_metrics_port is None else arguments.first_metrics_port
    instances = sorted({place.local_instance for place in places})
    probes = pod_probes([host_port(worker.host, first_port + instance) for instance in instances])
    try:
        exporter = MetricsExporter(CollectorRegistry(), worker.host, arguments.health_port, probes)
    except TandemError as error:
        log.error(str(error))
        return 2
    try:
        return run_pod(commands, worker.drain_timeout_s)
    finally:
        exporter.close()
