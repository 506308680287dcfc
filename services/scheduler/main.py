"""A scheduler replica's process: ``python -m services.scheduler.main --config FILE --replica N``."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from common.bus.exported import exported_bus
from common.clock import MonotonicClock
from common.config.address import host_port
from common.config.cluster import ClusterConfig
from common.config.load import load_cluster
from common.errors import InternalError, TandemError
from common.process.stop_signal import stop_signal
from common.process.tether import tether_to_parent
from common.rpc.server import Health, build_server, start_server
from common.state.exported import exported_lookups
from common.telemetry.event_loop import fault_of
from common.telemetry.exporter import MetricsExporter, Probes
from common.telemetry.logs import configure_logs, get_log
from services.scheduler.http_edge import HttpEdge
from services.scheduler.links import open_links
from services.scheduler.model_card import read_model_card
from services.scheduler.replica import build_replica
from services.scheduler.servicer import SERVICE, register
from services.scheduler.settings import SchedulerSettings
from services.scheduler.tokenizer import Tokenizer
from services.scheduler.upkeep import keep_up

log = get_log(__name__)
STREAM_GRACE_S = 2.0
STUCK_AFTER_S = 2.0


async def serve(config: ClusterConfig, number: int) -> None:
    """Run replica `number` until SIGTERM or SIGINT, then drain, until the next of them at the longest."""
    place, clock, registry = config.scheduler, MonotonicClock(), CollectorRegistry()
    stop = stop_signal()
    directory = Path(config.model.path)
    card = read_model_card(directory, config.model.name, config.context_tokens)
    tokenizer = Tokenizer.load(directory)
    settings = SchedulerSettings.of(f"scheduler-{number}", config)
    async with open_links(config, settings.name, clock, stop.asked) as links:
        replica = build_replica(card, tokenizer, links.leases, links.index, settings, clock, registry)
        registry.register(exported_bus(links.bus.counters, {"model": card.name}))
        registry.register(exported_lookups(links.index.counters, {"model": card.name}))
        replica.around.repeat_cancel = links.say_cancel
        links.leases.on_unreadable = replica.around.metrics.unreadable_leases.inc
        health, server = Health(), build_server()
        register(replica.core, server)
        spell = tokenizer.token_bytes if tokenizer else lambda _token_id: b""
        edge = HttpEdge(replica.core, spell, replica.ready, replica.around.metrics.refused_connections)
        loop = asyncio.get_running_loop()
        probes = Probes(fault=lambda: fault_of(loop, STUCK_AFTER_S), ready=replica.ready)
        exporter = MetricsExporter(registry, place.host, place.metrics_port and place.metrics_port + number, probes)
        http_port = await edge.start(place.host, place.http_port and place.http_port + number)
        port = await start_server(server, host_port(place.host, place.port and place.port + number), health, [SERVICE])
        log.info("serving", port=port, http_port=http_port, metrics_port=exporter.port, identity=replica.identity)

        upkeep = asyncio.create_task(keep_up(replica, links, health))
        stopping = asyncio.create_task(stop.asked.wait())
        await asyncio.wait({upkeep, stopping}, return_when=asyncio.FIRST_COMPLETED)
        broken = upkeep.done()

        log.info("draining", live_requests=replica.core.live_requests)
        await replica.core.drain(0.0 if broken else place.drain_timeout_s, stop.at_once)
        await edge.close()
        await server.stop(STREAM_GRACE_S)
        await replica.background.end()
        exporter.close()
        for task in (upkeep, stopping):
            task.cancel()
        await asyncio.wait({upkeep, stopping})
        if broken:
            raise InternalError("upkeep ended") from upkeep.exception()
    log.info("closed")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="services.scheduler", description="One replica of the scheduler.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--replica", type=int, default=0)
    parser.add_argument("--tethered", action="store_true", help="end when standard input ends")
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    given = parser.parse_args(argv)
    configure_logs(f"scheduler-{given.replica}", form=given.log_format)
    try:
        config = load_cluster(given.config)
        if given.tethered:
            tether_to_parent(config.scheduler.drain_timeout_s)
        asyncio.run(serve(config, given.replica))
    except TandemError as error:
        # What an operator has to mend is said in one line; a fault of ours shows where it is.
        log.error(str(error), error=error.__cause__ if isinstance(error, InternalError) else None)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
