"""What both roles' rank processes do, from the command line to the exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from common.clock import Clock, MonotonicClock
from common.config.cluster import ClusterConfig, WorkerConfig
from common.config.load import load_cluster
from common.config.place import RankPlace, Role, parallel_of, rank
from common.errors import Cancelled, ConfigError, DependencyUnavailable, TandemError
from common.kv.incarnation import draw_incarnation
from common.process.tether import tether_to_parent
from common.telemetry.logs import configure_logs, get_log
from common.worker.arguments import WorkerArguments, parse_arguments
from common.worker.rank_parts import RankParts, build_rank

log = get_log(__name__)

_POLL_S = 0.005
_POLL_WITH_FOLLOWERS_S = 0.02
_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class RankContext:
    """What one rank process knows of itself."""

    config: ClusterConfig
    worker: WorkerConfig
    place: RankPlace
    arguments: WorkerArguments
    incarnation: int
    clock: Clock

    @property
    def port(self) -> int:
        return self._port(self.arguments.first_port, self.worker.first_port)

    @property
    def metrics_port(self) -> int:
        return self._port(self.arguments.first_metrics_port, self.worker.first_metrics_port)

    def _port(self, given: int | None, configured: int) -> int:
        first = configured if given is None else given
        return first + self.place.local_instance if first else 0


Serve = Callable[[RankContext, RankParts], Coroutine[None, None, None]]


def rank_main(role: Role, argv: Sequence[str], serve: Serve) -> int:
    """Serve an instance, or follow its leader; returns the exit code."""
    arguments = parse_arguments(role, argv)
    configure_logs(f"{arguments.pod.name}-rank-{arguments.local_rank}", form=arguments.log_format)
    try:
        context = _context(role, arguments)
        if arguments.tethered:
            tether_to_parent(context.worker.drain_timeout_s)
        torch.set_num_threads(context.worker.threads)
        torch.set_grad_enabled(False)
        parts = build_rank(
            context.config,
            context.worker,
            context.place,
            blocks=context.config.prefill.blocks if role == "prefill" else context.config.decode.blocks,
            rendezvous=arguments.rendezvous,
            clock=context.clock,
        )
        if context.place.leads:
            asyncio.run(serve(context, parts))
        else:
            for number in (signal.SIGTERM, signal.SIGINT):  # a drain is the leader's to begin
                signal.signal(number, signal.SIG_IGN)
            parts.follow()
    except ConfigError as error:
        log.error("cannot serve", why=error)
        return 2
    except (Cancelled, DependencyUnavailable) as error:  # nothing of ours is at fault: one line
        log.error("ended", why=error)
        return 1
    except TandemError as error:
        log.error("ended", error=error)
        return 1
    return 0


def _context(role: Role, arguments: WorkerArguments) -> RankContext:
    if arguments.local_rank is None:
        raise ConfigError("--local-rank: must be given to a rank")
    config = load_cluster(arguments.config)
    place = rank(parallel_of(config, role), arguments.pod, arguments.local_rank)
    configure_logs(f"{place.instance}-tp-{place.tp_rank}", form=arguments.log_format)
    worker = config.prefill.worker if role == "prefill" else config.decode.worker
    return RankContext(config, worker, place, arguments, draw_incarnation(), MonotonicClock())


def poll_s(context: RankContext) -> float:
    """How often an idle engine looks around. With followers every look is a message to each, so fewer."""
    return _POLL_S if context.place.parallel.tp == 1 else _POLL_WITH_FOLLOWERS_S


def rest_s(worker: WorkerConfig) -> float:
    """How often who has no work shows that it lives; well within what counts as silence or as stalled."""
    return min(_REST_S, worker.group_silence_s / 8, worker.stalled_after_s / 4)


def end_process(code: int) -> NoReturn:
    """End at once: everything of ours is closed by now, and unloading torch, UCX and gRPC takes seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
