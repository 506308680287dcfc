"""Labels and buckets that all metric families share."""

from common.errors import TandemError

# Bounded: a model, a role and a rank; never a request.
LABELS = ("model", "role", "dp_rank")

# fmt: off
TIME_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
)
# fmt: on


def instance_labels(*, model: str, role: str, dp_rank: int) -> dict[str, str]:
    """The values of `LABELS` for one instance."""
    return dict(zip(LABELS, (model, role, str(dp_rank)), strict=True))


def error_types() -> tuple[str, ...]:
    """Every reason of the error tree: the values of the label ``error_type``."""
    reasons = set()
    tree = [TandemError]
    while tree:
        error = tree.pop()
        reasons.add(error.reason)
        tree.extend(error.__subclasses__())
    return tuple(sorted(reasons))
