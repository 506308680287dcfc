"""A cluster of processes on this machine: started in order, watched, and ended in order."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator

from common.config.cluster import EMBEDDED, ClusterConfig
from common.config.load import dump_cluster
from common.errors import DependencyUnavailable, TandemError
from common.rpc.inference_data import ClusterInfo
from common.telemetry.logs import LogFormat
from services.launcher.child import Child
from services.launcher.embedded import EmbeddedNats, EmbeddedServer, EmbeddedValkey
from services.launcher.ports import free_ports, require_ports
from services.launcher.processes import (
    ProcessPlan,
    instance_names,
    pod_plans,
    port_ranges,
    require_pools,
    resolve,
    scheduler_plans,
)
from services.launcher.run_directory import Endpoint, RunDirectory
from services.launcher.status import cluster_of

_ASK_TIMEOUT_S = 1.0
_POLL_S = 0.1
_GRACE_S = 5.0  # over the drain time
_BROKEN_DRAIN_S = 2.0  # of a cluster that has lost a process


class LocalCluster:
    """Real Redis, real NATS, schedulers and pods, each a process with its log in the run directory.

    `stop` is the only end; call it also after a failed `start`.

    Args:
        log_format: of what our own processes log.
    """

    def __init__(self, config: ClusterConfig, run: RunDirectory, log_format: LogFormat = "text") -> None:
        self.run = run
        self._log_format: LogFormat = log_format
        self.config = resolve(config, free_ports)
        self.children: dict[str, Child] = {}
        self._plans: dict[str, ProcessPlan] = {}
        self._hurry = False
        self._ready = False  # once: before, nobody has anything to drain
        self.servers: dict[str, EmbeddedServer] = {}  # in the order of their start

    @property
    def schedulers(self) -> tuple[str, ...]:
        scheduler = self.config.scheduler
        return tuple(f"{scheduler.host}:{scheduler.port + i}" for i in range(scheduler.replicas))

    def start(self) -> Endpoint:
        """Start every process; returns before they are ready.

        Raises:
            ConfigError: a pool is empty or a port cannot be had; nothing was started.
        """
        require_pools(self.config)
        require_ports(port_ranges(self.config))
        scheduler = self.config.scheduler
        self._start_embedded()
        self.run.config.write_text(dump_cluster(self.config), encoding="utf-8")
        file, log_format = self.run.config, self._log_format
        plans = scheduler_plans(self.config, file, log_format) + pod_plans(self.config, file, free_ports, log_format)
        for plan in plans:
            self._start_process(plan)
        endpoint = Endpoint(
            cluster=self.config.cluster,
            model=self.config.model.name,
            pid=os.getpid(),
            schedulers=self.schedulers,
            http=tuple(f"{scheduler.host}:{scheduler.http_port + i}" for i in range(scheduler.replicas)),
            metrics=tuple(address for plan in plans for address in plan.metrics),
            redis_url=self.config.redis.url,
            nats_url=self.config.nats.url,
        )
        self.run.write_endpoint(endpoint)
        return endpoint

    def restart(self, name: str) -> None:
        """Start a process anew that has ended, at its old place."""
        self._start_process(self._plans[name])

    def _start_process(self, plan: ProcessPlan) -> None:
        log = self.run.logs / f"{plan.name}.log"
        self.children[plan.name] = Child(plan.name, plan.command, log, {"OMP_NUM_THREADS": "1"})
        self._plans[plan.name] = plan

    def waiting_for(self) -> list[str]:
        """What is missing to a complete cluster; empty when requests are welcome everywhere."""
        missing = []
        seen: dict[str, str] = {}
        for i, address in enumerate(self.schedulers):
            cluster = self.ask(address)
            if cluster is None:
                missing.append(f"scheduler-{i}")
                continue
            seen = {instance.instance: instance.state for instance in cluster.instances}
            for name in instance_names(self.config):
                if seen.get(name) != "ready" and name not in missing:
                    missing.append(name)
        return missing

    def wait_ready(self, timeout_s: float, on_wait: Callable[[list[str]], None] = lambda missing: None) -> None:
        """Wait until nothing is missing.

        Raises:
            ChildDied: a process ended meanwhile.
            DependencyUnavailable: the time is over; says what is missing.
        """
        deadline_s = time.monotonic() + timeout_s
        while missing := self.waiting_for():
            self.check()
            on_wait(missing)
            if time.monotonic() > deadline_s:
                raise DependencyUnavailable(f"not ready after {timeout_s:.0f} s, waiting for {', '.join(missing)}")
            time.sleep(_POLL_S)
        self.check()
        self._ready = True

    def ask(self, address: str) -> ClusterInfo | None:
        """The pools as one scheduler sees them; None when it does not answer."""
        try:
            return asyncio.run(cluster_of(address, _ASK_TIMEOUT_S))
        except TandemError:
            return None

    def check(self) -> None:
        """Raises ChildDied for the first process that has ended by itself."""
        for process in self._processes():
            process.check()

    def forget(self, name: str) -> None:
        """Go on without a process that has ended."""
        self.children.pop(name, None)
        self.servers.pop(name, None)

    def stop(self) -> list[str]:
        """End front doors first, then pools, then what they lean on; returns what did not end by itself.

        Where a process has died, what is live may wait for it in vain, so drains are cut short after a moment.
        """
        killed = []
        broken = any(not process.running() for process in self._processes())
        for names in self._ending_order():
            children = [self.children[name] for name in names]
            begun_s = time.monotonic()
            for child in children:
                child.signal(signal.SIGTERM)
            if broken and not self._hurry and not all(one.ended_by(begun_s + _BROKEN_DRAIN_S) for one in children):
                begun_s = time.monotonic()
                for child in children:
                    child.signal(signal.SIGTERM)
            for child in children:
                drain_s = self._plans[child.name].drain_timeout_s if self._ready and not broken else 0.0
                grace_s = 0.0 if self._hurry else drain_s + _GRACE_S
                if not child.end(begun_s + grace_s):
                    killed.append(child.name)
        for name in reversed(list(self.servers)):
            self.servers.pop(name).stop()
        self.run.remove_endpoint()
        self.run.release()
        return killed

    def hurry(self) -> None:
        """Give nobody time to drain, after a second Ctrl-C."""
        self._hurry = True

    def _processes(self) -> list[Child | EmbeddedServer]:
        return [*self.children.values(), *self.servers.values()]

    def _ending_order(self) -> Iterator[list[str]]:
        if not self._ready:
            yield list(self.children)
            return
        for prefix in ("scheduler-", "decode-", "prefill-"):
            yield [name for name in self.children if name.startswith(prefix)]

    def _start_embedded(self) -> None:
        redis, nats = self.config.redis, self.config.nats
        if redis.url == EMBEDDED:
            redis = redis.model_copy(update={"url": self._start_server(EmbeddedValkey())})
        if nats.url == EMBEDDED:
            nats = nats.model_copy(update={"url": self._start_server(EmbeddedNats())})
        self.config = self.config.model_copy(update={"redis": redis, "nats": nats})

    def _start_server(self, server: EmbeddedServer) -> str:
        server.start(free_ports(1), self.run.logs)
        self.servers[server.name] = server
        return server.url
