"""What the controller looks at and acts through, opened and closed in order."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from common.bus.connection import Bus
from common.bus.exported import exported_bus
from common.clock import Clock
from common.config.address import host_port
from common.config.cluster import ClusterConfig
from common.process.dependencies import require_addresses, wait_for_nats
from services.autoscaler.kubernetes_api import KubernetesApi, cluster_configuration
from services.autoscaler.leader import Leadership
from services.autoscaler.metrics import AutoscalerMetrics, autoscaler_metrics
from services.autoscaler.observe import SchedulerWatch
from services.autoscaler.pool_watch import PoolWatch
from services.autoscaler.workloads import Workloads, workloads


@dataclass(frozen=True, slots=True)
class Surroundings:
    api: KubernetesApi
    workloads: Workloads
    picture: PoolWatch
    schedulers: SchedulerWatch
    bus: Bus
    leadership: Leadership
    metrics: AutoscalerMetrics
    clock: Clock


@asynccontextmanager
async def open_surroundings(
    config: ClusterConfig, namespace: str, clock: Clock, registry: CollectorRegistry, stop: asyncio.Event
) -> AsyncIterator[Surroundings]:
    """
    Raises:
        ConfigError: no way to the API server, or the file does not say where NATS is.
        DependencyUnavailable: NATS did not answer within its `start_timeout_s`.
        Cancelled: `stop` was set while it was waited for.
    """
    own, place = config.autoscaler, config.scheduler
    require_addresses(("nats.url", config.nats.url))
    identity = f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"
    kind = workloads(own.group_controller)
    api = KubernetesApi(cluster_configuration(), namespace, own.api_timeout_s)
    bus = await wait_for_nats(config.nats, identity, stop)
    registry.register(exported_bus(bus.counters, {"model": config.model.name}))
    picture = PoolWatch(api, kind, own.selector, clock)
    schedulers = SchedulerWatch(own.schedulers or (host_port(place.host, place.port),), own.api_timeout_s)
    picture.start()
    try:
        yield Surroundings(
            api=api,
            workloads=kind,
            picture=picture,
            schedulers=schedulers,
            bus=bus,
            leadership=Leadership(api, identity, own, clock),
            metrics=autoscaler_metrics(registry, config.model.name),
            clock=clock,
        )
    finally:
        picture.close()
        api.close()
        await schedulers.close()
        await bus.close()
