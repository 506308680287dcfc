"""Signs of life while a group is parked and no exchange would show that a peer is gone.

Every parked rank counts up its own beat. How long ago a beat changed is measured by the observer's own clock, so clocks
need not agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.clock import Clock
from common.errors import DependencyUnavailable, WorkerLost
from common.parallel.rendezvous import Store


@dataclass(frozen=True, slots=True)
class PeerWatch:
    """What one rank saw of the others' beats.

    Attributes:
        limit_s: silence after which a rank counts as lost.
        last: beat and time of its last change, by rank.
    """

    limit_s: float
    last: tuple[tuple[int, float], ...] = ()

    def saw(self, beats: Sequence[int], now_s: float) -> "PeerWatch":
        if not self.last:
            return PeerWatch(self.limit_s, tuple((beat, now_s) for beat in beats))
        return PeerWatch(
            self.limit_s,
            tuple(old if old[0] == beat else (beat, now_s) for old, beat in zip(self.last, beats, strict=True)),
        )

    def lost(self, now_s: float) -> tuple[int, ...]:
        """Ranks silent for longer than the limit."""
        return tuple(rank for rank, (_, since_s) in enumerate(self.last) if now_s - since_s > self.limit_s)


class StoreHeartbeats:
    """Beats in the store at which the group's ranks met. Every rank has one of these before anybody reads.

    Raises:
        DependencyUnavailable: by every call, when the store is gone.
    """

    def __init__(self, store: Store, group: str, rank: int, ranks: int) -> None:
        self._store = store
        self._keys = [f"{group}/beat/{r}" for r in range(ranks)]
        self._own = self._keys[rank]
        self._add(0)

    def beat(self) -> None:
        self._add(1)

    def read(self) -> tuple[int, ...]:
        """Everybody's, in one request: all ranks of a group read as often as they beat."""
        try:
            return tuple(map(int, self._store.multi_get(self._keys)))
        except RuntimeError as error:
            raise DependencyUnavailable(f"the store of {self._own} is gone: {error}") from error

    def _add(self, amount: int) -> None:
        try:
            self._store.add(self._own, amount)
        except RuntimeError as error:
            raise DependencyUnavailable(f"the store of {self._own} is gone: {error}") from error


class ParkedPeers:
    """While this rank is parked: shows that it lives, and finds out when another does not.

    Args:
        limit_s: silence after which a peer counts as lost; beats go out four times as often.
    """

    def __init__(self, heartbeats: StoreHeartbeats, clock: Clock, limit_s: float) -> None:
        self._heartbeats, self._clock, self._limit_s = heartbeats, clock, limit_s
        self.running()

    def running(self) -> None:
        """The group runs: exchanges show who lives. The next park begins with a clean slate."""
        self._watch = PeerWatch(self._limit_s)
        self._next_s = self._clock.now_s()

    def parked(self) -> None:
        """Call at every look at the wake flag.

        Raises:
            WorkerLost: names the ranks that were silent for too long.
        """
        now_s = self._clock.now_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._limit_s / 4
        self._heartbeats.beat()
        self._watch = self._watch.saw(self._heartbeats.read(), now_s)
        lost = self._watch.lost(now_s)
        if lost:
            raise WorkerLost(f"parked peers {', '.join(map(str, lost))} showed no life for {self._limit_s:g} s")
