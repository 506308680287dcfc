"""The autoscaler's process: ``python -m services.autoscaler --config FILE --namespace NS``."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from common.clock import MonotonicClock
from common.config.cluster import ClusterConfig
from common.config.load import load_cluster
from common.errors import InternalError, TandemError
from common.process.stop_signal import stop_signal
from common.telemetry.event_loop import fault_of
from common.telemetry.exporter import MetricsExporter, Probes
from common.telemetry.logs import configure_logs, get_log
from services.autoscaler.controller import Controller
from services.autoscaler.surroundings import open_surroundings

log = get_log(__name__)
STUCK_AFTER_S = 2.0


async def scale(config: ClusterConfig, namespace: str) -> None:
    """Scale the pools until SIGTERM or SIGINT."""
    own, registry, stop = config.autoscaler, CollectorRegistry(), stop_signal().asked
    loop = asyncio.get_running_loop()
    async with open_surroundings(config, namespace, MonotonicClock(), registry, stop) as around:
        controller = Controller(config, around)
        probes = Probes(fault=lambda: fault_of(loop, STUCK_AFTER_S), ready=lambda: controller.ready)
        exporter = MetricsExporter(registry, own.host, own.metrics_port, probes)
        log.info("scaling", namespace=namespace, metrics_port=exporter.port)

        work = [asyncio.create_task(one) for one in (around.leadership.run(), controller.run())]
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)

        for task in (*work, stopping):
            task.cancel()
        await asyncio.wait({*work, stopping})
        try:
            await asyncio.to_thread(around.leadership.resign)
        except TandemError as error:  # it lapses by itself
            log.warning("lease not given back", why=str(error))
        exporter.close()
        broken = [task for task in work if task in done]
        if broken:
            raise InternalError("a loop of the autoscaler ended") from broken[0].exception()
    log.info("closed")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="services.autoscaler", description="Scales the pools of one cluster.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    given = parser.parse_args(argv)
    configure_logs("autoscaler", form=given.log_format)
    try:
        asyncio.run(scale(load_cluster(given.config), given.namespace))
    except TandemError as error:
        # What an operator has to mend is said in one line; a fault of ours shows where it is.
        log.error(str(error), error=error.__cause__ if isinstance(error, InternalError) else None)
        return 2
    return 0
