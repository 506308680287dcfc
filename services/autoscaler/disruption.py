"""What PodDisruptionBudgets say of a pool. Pure reading."""

import math
from collections.abc import Iterable

from services.autoscaler.kubernetes_api import Object
from services.autoscaler.workloads import PoolObject


def floor_of(pool: PoolObject, budgets: Iterable[Object]) -> int:
    """Groups that the pool's budgets want at least: whole groups that hold `minAvailable` pods."""
    floors = [0]
    for budget in budgets:
        wanted = budget["spec"].get("minAvailable")
        if wanted is not None and selects(budget, pool.pod_labels):
            floors.append(math.ceil(_pods(wanted, pool.replicas * pool.nodes) / pool.nodes))
    return max(floors)


def allowed(pool: PoolObject, budgets: Iterable[Object]) -> bool:
    """Whether every budget of the pool lets a pod go now. One that has seen no pod yet forbids nothing."""
    for budget in budgets:
        status = budget.get("status", {})
        if selects(budget, pool.pod_labels) and status.get("expectedPods") and not status.get("disruptionsAllowed"):
            return False
    return True


def selects(budget: Object, labels: dict[str, str]) -> bool:
    """Whether the budget is about pods with these labels. A budget without a selector is about none."""
    selector = budget["spec"].get("selector") or {}
    wanted, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not wanted and not expressions:
        return False
    return all(labels.get(name) == value for name, value in wanted.items()) and all(
        _holds(one, labels) for one in expressions
    )


def _holds(expression: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None  # DoesNotExist


def _pods(wanted: int | str, expected: int) -> int:
    if isinstance(wanted, str) and wanted.endswith("%"):
        return math.ceil(expected * int(wanted[:-1]) / 100)
    return int(wanted)
