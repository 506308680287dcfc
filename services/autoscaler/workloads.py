"""The pools as Kubernetes objects: one LeaderWorkerSet a pool, or one StatefulSet a group. Reading is pure.

A group is asked for by the LeaderWorkerSet's `replicas`, or by its StatefulSet having pods; both take and give groups
at the end of the row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from common.config.place import ROLES, Role
from common.errors import ConfigError, TandemError
from services.autoscaler.kubernetes_api import (
    LEADER_WORKER_SETS,
    STATEFUL_SETS,
    KubernetesApi,
    Object,
    ObjectChanged,
    Resource,
)

COMPONENT = "app.kubernetes.io/component"
GROUP = "tandem/group"
NODES = "tandem/nodes"
_ATTEMPTS = 5  # to write over others' writes


class NotLeading(TandemError):
    """Another replica may be acting by now."""

    reason = "NOT_LEADING"


@dataclass(frozen=True, slots=True)
class PoolObject:
    """What Kubernetes says of one pool.

    Attributes:
        replicas: groups asked for; `ready_replicas` of them are ready.
        nodes: pods of a group.
        pod_labels: of its pods, by which disruption budgets find them.
    """

    role: Role
    replicas: int
    ready_replicas: int
    nodes: int
    pod_labels: dict[str, str]
    names: tuple[str, ...]  # of the object, or of each group's by index


class Workloads(Protocol):
    """One way to run pools; two exist."""

    resource: Resource

    def pools(self, objects: Iterable[Object]) -> dict[Role, PoolObject]: ...

    def set_groups(self, api: KubernetesApi, pool: PoolObject, groups: int, may_act: Callable[[], bool]) -> None:
        """Ask for `groups` groups where `pool.replicas` are asked for.

        Raises:
            ObjectChanged: somebody else asks for another number by now.
            NotLeading: `may_act` said no before a write.
        """
        ...


class LeaderWorkerSets:
    resource = LEADER_WORKER_SETS

    def pools(self, objects: Iterable[Object]) -> dict[Role, PoolObject]:
        found: dict[Role, PoolObject] = {}
        for one in objects:
            role = _role(one)
            if role is not None:
                template = one["spec"]["leaderWorkerTemplate"]
                found[role] = PoolObject(
                    role=role,
                    replicas=int(one["spec"].get("replicas", 1)),
                    ready_replicas=int(one.get("status", {}).get("readyReplicas", 0)),
                    nodes=int(template.get("size", 1)),
                    pod_labels=_pod_labels(template["workerTemplate"]),
                    names=(one["metadata"]["name"],),
                )
        return found

    def set_groups(self, api: KubernetesApi, pool: PoolObject, groups: int, may_act: Callable[[], bool]) -> None:
        set_scale(api, self.resource, pool.names[0], pool.replicas, groups, may_act)


class StatefulSets:
    resource = STATEFUL_SETS

    def pools(self, objects: Iterable[Object]) -> dict[Role, PoolObject]:
        sets: dict[Role, dict[int, Object]] = {}
        for one in objects:
            role, group = _role(one), one["metadata"].get("labels", {}).get(GROUP, "")
            if role is not None and group.isdecimal():
                sets.setdefault(role, {})[int(group)] = one
        return {role: self._pool(role, [by_group[i] for i in sorted(by_group)]) for role, by_group in sets.items()}

    def set_groups(self, api: KubernetesApi, pool: PoolObject, groups: int, may_act: Callable[[], bool]) -> None:
        if groups > len(pool.names):
            raise ConfigError(
                f"{pool.role}: {groups} groups, but only {len(pool.names)} StatefulSets with label {GROUP}"
            )
        for index in range(pool.replicas, groups):
            set_scale(api, self.resource, pool.names[index], 0, pool.nodes, may_act)
        for index in range(pool.replicas - 1, groups - 1, -1):
            set_scale(api, self.resource, pool.names[index], pool.nodes, 0, may_act)

    def _pool(self, role: Role, sets: Sequence[Object]) -> PoolObject:
        nodes = int(sets[0]["metadata"].get("annotations", {}).get(NODES, 1))
        asked = [index for index, one in enumerate(sets) if int(one["spec"].get("replicas", 1)) > 0]
        ready = [one for one in sets if int(one.get("status", {}).get("readyReplicas", 0)) >= nodes]
        return PoolObject(
            role=role,
            replicas=max(asked, default=-1) + 1,
            ready_replicas=len(ready),
            nodes=nodes,
            pod_labels=_pod_labels(sets[0]["spec"]["template"]),
            names=tuple(one["metadata"]["name"] for one in sets),
        )


def workloads(group_controller: Literal["LeaderWorkerSet", "StatefulSet"]) -> Workloads:
    return LeaderWorkerSets() if group_controller == "LeaderWorkerSet" else StatefulSets()


def set_scale(
    api: KubernetesApi, resource: Resource, name: str, expected: int, replicas: int, may_act: Callable[[], bool]
) -> None:
    """Write the scale over what others write beside it, as long as it still says `expected`.

    Raises:
        ObjectChanged, NotLeading: as `Workloads.set_groups`.
    """
    for attempt in range(_ATTEMPTS):
        scale = api.get_scale(resource, name)
        now = int(scale["spec"].get("replicas", 0))
        if now == replicas:
            return
        if now != expected:
            raise ObjectChanged(f"{name}: somebody else asks for {now}, it was {expected} when this was decided")
        if not may_act():
            raise NotLeading(f"{name}: not scaled to {replicas}, the lease is not ours any more")
        scale["spec"]["replicas"] = replicas
        try:
            api.replace_scale(resource, name, scale)
        except ObjectChanged:
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        return


def _role(one: Object) -> Role | None:
    component = one["metadata"].get("labels", {}).get(COMPONENT)
    return next((role for role in ROLES if role == component), None)


def _pod_labels(template: Object) -> dict[str, str]:
    return dict(template.get("metadata", {}).get("labels", {}))
