"""Who is in the cluster and fit for work: leases say who should be, health says who is.

An instance joins when it describes itself and is compatible with those that are here (and, for decode, its stream of
tokens is open). It becomes suspect at once when it gives no sign of life, takes no work then, and after
`fence_after_s` its work is resumed elsewhere. It is removed when its lease lapsed *and* its health call fails; while
nobody can say who has a lease, everybody stays.
"""

import asyncio

from common.cancellation import all_ended
from common.clock import Clock
from common.errors import DependencyUnavailable, Incompatible, TandemError
from common.kv.compatibility import check_compatible
from common.rpc.clients import DecodeClient, PrefillClient
from common.rpc.server import Probe
from common.state.worker_leases import WorkerRecord
from common.telemetry.logs import get_log
from services.scheduler.decode_stream import DecodeStream
from services.scheduler.discovery import Discovery
from services.scheduler.fleet import DECODE, PREFILL, Fleet, InstanceState
from services.scheduler.peer import DecodePeer, Peer, PrefillPeer
from services.scheduler.settings import MembershipPolicy

log = get_log(__name__)


class Membership:
    """Keeps the fleet's states true and a connection to every instance."""

    def __init__(
        self, fleet: Fleet, discovery: Discovery, scheduler: str, clock: Clock, policy: MembershipPolicy
    ) -> None:
        self._fleet = fleet
        self._discovery = discovery
        self._scheduler = scheduler
        self._clock = clock
        self._policy = policy
        self._peers: dict[str, Peer] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._draining: set[tuple[str, int]] = set()  # (instance, incarnation), told by the bus
        self._held_until_s: dict[tuple[str, int], float] = {}  # likewise
        self.leases_known = True

    def prefill(self, instance: str) -> PrefillPeer | None:
        peer = self._peers.get(instance)
        return peer if isinstance(peer, PrefillPeer) else None

    def decode(self, instance: str) -> DecodePeer | None:
        peer = self._peers.get(instance)
        return peer if isinstance(peer, DecodePeer) else None

    def suspect(self, instance: str) -> None:
        """A call to it just failed: no new work until it shows a sign of life, which is asked for at once."""
        self._fleet.set_state(instance, InstanceState.SUSPECT)
        peer = self._peers.get(instance)
        if peer is not None:
            peer.poke.set()

    def drain(self, instance: str, incarnation: int) -> None:
        """It said that it takes no new work."""
        self._draining.add((instance, incarnation))
        self._rest(instance, incarnation)

    def hold(self, instance: str, incarnation: int, hold_s: float) -> None:
        """It shall get no new work for so long; without another hold it is then ready again."""
        self._held_until_s[instance, incarnation] = self._clock.now_s() + hold_s
        self._rest(instance, incarnation)

    def _rest(self, instance: str, incarnation: int) -> None:
        known = self._fleet.get(instance)
        if known is not None and known.incarnation == incarnation and known.state is InstanceState.READY:
            self._fleet.set_state(instance, InstanceState.DRAINING)

    async def run(self) -> None:
        """Discover and watch until cancelled."""
        try:
            while True:
                await self._discover()
                for watcher in self._watchers.values():
                    if watcher.done():
                        watcher.result()  # a watcher ends by itself only by a fault of ours: do not go on without it
                await asyncio.sleep(self._policy.discovery_interval_s)
        finally:
            for instance in list(self._watchers):
                await self._forget(instance)

    async def _discover(self) -> None:
        try:
            listed = {known.instance: known for known in await self._discovery.current()}
        except DependencyUnavailable as error:
            if self.leases_known:
                log.warning("leases unknown, everybody stays", why=str(error))
            self.leases_known = False
            return
        self.leases_known = True
        for instance, known in listed.items():
            peer = self._peers.get(instance)
            if peer is not None and peer.known.address != known.address:
                await self._forget(instance)
                peer = None
            if peer is None:
                self._greet(known)
                continue
            if peer.known != known:
                peer.known = known
                peer.poke.set()
        for instance in list(self._peers):
            if instance not in listed:
                await self._lapse(instance)

    async def _lapse(self, instance: str) -> None:
        peer, known = self._peers[instance], self._fleet.get(instance)
        joined = known is not None and known.description is not None
        if peer.vigil.silent_since_s is not None or not joined:
            log.info("instance removed", instance=instance)
            await self._forget(instance)
        else:
            peer.poke.set()

    def _greet(self, known: WorkerRecord) -> None:
        self._fleet.add(known.instance, known.role, known.address)
        peer = self._connect(known)
        self._peers[known.instance] = peer
        self._watchers[known.instance] = asyncio.create_task(self._watch(peer))

    def _connect(self, known: WorkerRecord) -> Peer:
        if known.role == PREFILL:
            return PrefillPeer(known, PrefillClient(known.address, self._clock))
        client = DecodeClient(known.address, self._clock)
        stream = DecodeStream(
            client,
            known.instance,
            self._scheduler,
            opened=lambda _incarnation: self._poke(known.instance),
            broken=lambda: self.suspect(known.instance),
        )
        return DecodePeer(known, client, stream)

    def _poke(self, instance: str) -> None:
        peer = self._peers.get(instance)
        if peer is not None:
            peer.poke.set()

    async def _forget(self, instance: str) -> None:
        peer, watcher = self._peers.pop(instance), self._watchers.pop(instance)
        watcher.cancel()
        await all_ended({watcher})
        self._fleet.remove(instance)
        self._held_until_s = {key: until_s for key, until_s in self._held_until_s.items() if key[0] != instance}
        self._draining = {key for key in self._draining if key[0] != instance}
        peer.fence("removed from the cluster")
        await peer.client.close()

    async def _watch(self, peer: Peer) -> None:
        reader = asyncio.create_task(peer.stream.run()) if isinstance(peer, DecodePeer) else None
        try:
            while True:
                peer.poke.clear()
                await self._look(peer)
                if reader is not None and reader.done():
                    reader.result()
                try:
                    async with asyncio.timeout(self._policy.health_interval_s):
                        await peer.poke.wait()
                except TimeoutError:
                    continue
        finally:
            if reader is not None:
                reader.cancel()
                await all_ended({reader})

    async def _look(self, peer: Peer) -> None:
        instance, vigil = peer.known.instance, peer.vigil
        try:
            await self._describe(peer)
            live, ready = await asyncio.gather(
                peer.client.serving(Probe.LIVENESS, self._policy.health_timeout_s),
                peer.client.serving(Probe.READINESS, self._policy.health_timeout_s),
            )
        except Incompatible as error:
            if vigil.refused != str(error):
                vigil.refused = str(error)
                log.error("instance refused", instance=instance, why=str(error))
            return
        except TandemError as error:
            self._silent(peer, str(error))
            return
        if not live:
            self._silent(peer, "says that it makes no progress")
            return
        if vigil.silent_since_s is not None:
            log.info("instance answers again", instance=instance)
        vigil.silent_since_s, vigil.fenced, vigil.refused = None, False, ""
        self._set_fit(peer, ready=ready)

    def _set_fit(self, peer: Peer, *, ready: bool) -> None:
        known = self._fleet.get(peer.known.instance)
        if known is None:
            return
        identity = (known.instance, known.incarnation)
        held = self._held_until_s.get(identity, 0.0) > self._clock.now_s()
        drained = held or identity in self._draining or peer.known.draining
        connected = not isinstance(peer, DecodePeer) or peer.stream.incarnation == known.incarnation
        if not connected:
            self._fleet.set_state(known.instance, InstanceState.JOINING)
        elif ready and not drained:
            if self._fleet.set_state(known.instance, InstanceState.READY):
                log.info("instance ready", instance=known.instance, role=known.role, address=known.address)
        else:
            self._fleet.set_state(known.instance, InstanceState.DRAINING)

    async def _describe(self, peer: Peer) -> None:
        """Learn who answers there, when it is not known or may have changed."""
        known = self._fleet.get(peer.known.instance)
        if known is None:
            return
        stream = peer.stream.incarnation if isinstance(peer, DecodePeer) else None
        told = {peer.known.incarnation, stream or known.incarnation}
        fresh = known.state in (InstanceState.READY, InstanceState.DRAINING) and told == {known.incarnation}
        if known.description is not None and fresh:
            return
        description = await peer.client.describe(self._policy.health_timeout_s)
        if description.role != peer.known.role or description.instance != peer.known.instance:
            raise Incompatible("instance", f"{peer.known.role} {peer.known.instance}", description.instance)
        others = [one.description for one in self._fleet if one.description and one is not known]
        if others:
            check_compatible(others[0].compatibility, description.compatibility)
        if known.description is not None and known.incarnation != description.incarnation:
            log.info("instance restarted", instance=known.instance, incarnation=description.incarnation)
            peer.fence("restarted")
            known = self._fleet.add(known.instance, known.role, known.address)
        known.description = description

    def _silent(self, peer: Peer, why: str) -> None:
        instance, vigil, now_s = peer.known.instance, peer.vigil, self._clock.now_s()
        known = self._fleet.get(instance)
        if known is None or known.state is InstanceState.JOINING:
            return
        if vigil.silent_since_s is None:
            vigil.silent_since_s = now_s
            log.warning("instance suspect", instance=instance, why=why)
        self._fleet.set_state(instance, InstanceState.SUSPECT)
        if not vigil.fenced and now_s - vigil.silent_since_s >= self._policy.fence_after_s:
            vigil.fenced = True
            peer.fence(f"no sign of life for {now_s - vigil.silent_since_s:.1f} s")


def role_ready(fleet: Fleet) -> bool:
    """Whether a request could be served: some instance of each role is ready."""
    return bool(fleet.ready(PREFILL)) and bool(fleet.ready(DECODE))
