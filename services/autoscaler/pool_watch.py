"""The pools' objects, kept current by list and watch in a thread of its own."""

import threading

from common.clock import Clock
from common.config.place import Role
from common.errors import TandemError
from common.telemetry.logs import get_log
from services.autoscaler.kubernetes_api import HistoryGone, KubernetesApi, Object
from services.autoscaler.workloads import PoolObject, Workloads

log = get_log(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class PoolWatch:
    """`close` ends the thread within one window.

    Args:
        window_s: of one watch. The server ends it, and that it answered says that the picture is current.
    """

    def __init__(
        self, api: KubernetesApi, workloads: Workloads, selector: str, clock: Clock, window_s: int = 5
    ) -> None:
        self._api = api
        self._workloads = workloads
        self._selector = selector
        self._clock = clock
        self._window_s = window_s
        self._objects: dict[str, Object] = {}
        self._seen_s = float("-inf")
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)
        self.lists = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def age_s(self) -> float:
        """Since the server last said that this is how things are; infinite before the first list."""
        return self._clock.now_s() - self._seen_s

    def pools(self) -> dict[Role, PoolObject]:
        with self._lock:
            return self._workloads.pools(list(self._objects.values()))

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ending.is_set():
            try:
                version = self._list()
                pause_s = _FIRST_PAUSE_S
                while not self._ending.is_set():
                    version = self._follow(version)
            except HistoryGone:
                log.info("changes of the pools were missed, listing anew")
            except TandemError as error:
                log.warning("pools not seen", why=str(error), again_in_s=pause_s)
                self._ending.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _list(self) -> str:
        objects, version = self._api.list(self._workloads.resource, self._selector)
        with self._lock:
            self._objects = {one["metadata"]["name"]: one for one in objects}
        self._seen_s = self._clock.now_s()
        self.lists += 1
        return version

    def _follow(self, version: str) -> str:
        for kind, one in self._api.watch(self._workloads.resource, self._selector, version, self._window_s):
            version = str(one["metadata"]["resourceVersion"])
            with self._lock:
                if kind == "DELETED":
                    self._objects.pop(one["metadata"]["name"], None)
                elif kind in ("ADDED", "MODIFIED"):
                    self._objects[one["metadata"]["name"]] = one
            self._seen_s = self._clock.now_s()
            if self._ending.is_set():
                break
        self._seen_s = self._clock.now_s()
        return version
