"""Requests that wait for their turn, fair between tenants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class _Tenant(Generic[Item]):
    virtual: float  # cost served so far by weight
    waiting: list[tuple[int, int, float, Item]] = field(default_factory=list)  # heap of (-priority, order, cost, item)


class FairQueue(Generic[Item]):
    """Start-time fair queueing: the tenant that was served least, by weight, is next; within one, priority and order.

    A tenant that was away starts at the present, so absence earns nothing and a newcomer is not behind. Priority never
    goes past another tenant's share.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: dict[str, _Tenant[Item]] = {}
        self._virtual_now = 0.0
        self._order = 0
        self._size = 0
        self.waiting_cost = 0.0

    def __len__(self) -> int:
        return self._size

    def push(self, tenant: str, priority: int, cost: float, item: Item) -> None:
        state = self._tenants.get(tenant)
        if state is None:
            state = self._tenants[tenant] = _Tenant(self._virtual_now)
        state.virtual = max(state.virtual, self._virtual_now)
        heappush(state.waiting, (-priority, self._order, cost, item))
        self._order += 1
        self._size += 1
        self.waiting_cost += cost

    def pop(self) -> Item:
        """The next item; the queue must not be empty."""
        waiting = [name for name, state in self._tenants.items() if state.waiting]
        name = min(waiting, key=lambda one: (self._tenants[one].virtual, one))
        state = self._tenants[name]
        _, _, cost, item = heappop(state.waiting)
        self._virtual_now = state.virtual
        state.virtual += cost / self._weights.get(name, 1.0)
        self._left(cost)
        return item

    def remove(self, tenant: str, item: Item) -> bool:
        """Take out an item that no longer waits; False when it is not here."""
        state = self._tenants.get(tenant)
        if state is None:
            return False
        for index, entry in enumerate(state.waiting):
            if entry[3] is item:
                state.waiting[index] = state.waiting[-1]
                state.waiting.pop()
                state.waiting.sort()
                self._left(entry[2])
                return True
        return False

    def longest_tenant(self) -> str:
        """The tenant with most waiting items by weight; the queue must not be empty."""
        return max(self._tenants, key=lambda one: (len(self._tenants[one].waiting) / self._weights.get(one, 1.0), one))

    def count(self, tenant: str) -> float:
        """Waiting items of a tenant, by weight."""
        state = self._tenants.get(tenant)
        return len(state.waiting) / self._weights.get(tenant, 1.0) if state else 0.0

    def last_of(self, tenant: str) -> Item:
        """What that tenant would be served last."""
        return max(self._tenants[tenant].waiting)[3]

    def _left(self, cost: float) -> None:
        self._size -= 1
        self.waiting_cost -= cost
        if not self._size:  # nobody waits, so nobody is owed
            self._tenants.clear()
            self.waiting_cost = 0.0
