"""Which connections rendered NetworkPolicies let through, decided as Kubernetes does: both ends must allow."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.helm.objects import Object


@dataclass(frozen=True)
class End:
    """A pod of the release's namespace or of another one, or an address outside of the cluster."""

    labels: Mapping[str, str] | None = None
    namespace: str = "serving"
    address: str = ""


def allowed(policies: list[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    return _lets(policies, "Egress", source, target, port, protocol) and _lets(
        policies, "Ingress", target, source, port, protocol
    )


def _lets(policies: list[Object], direction: str, mine: End, other: End, port: int, protocol: str) -> bool:
    """Who is selected by no policy of this direction is free; else one of its rules must match."""
    if mine.labels is None or mine.namespace != "serving":
        return True
    specs = [
        p["spec"]
        for p in policies
        if direction in p["spec"]["policyTypes"] and _selects(p["spec"]["podSelector"], mine.labels)
    ]
    side, key = direction.lower(), "to" if direction == "Egress" else "from"
    rules = [rule for spec in specs for rule in spec.get(side, [])]
    return not specs or any(
        _peers(rule.get(key), other) and _ports(rule.get("ports"), port, protocol) for rule in rules
    )


def _peers(peers: list[dict[str, Any]] | None, other: End) -> bool:
    return not peers or any(_peer(peer, other) for peer in peers)


def _peer(peer: dict[str, Any], other: End) -> bool:
    if "ipBlock" in peer:
        network = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return bool(other.address) and ipaddress.ip_address(other.address) in network
    if other.labels is None:
        return False
    if "namespaceSelector" in peer:
        there = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        there = other.namespace == "serving"
    return there and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: dict[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or []
    assert all(one["operator"] == "In" for one in expressions)
    return wanted <= labels.items() and all(labels.get(one["key"]) in one["values"] for one in expressions)


def _ports(ports: list[dict[str, Any]] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        one["protocol"] == protocol and one["port"] <= port <= one.get("endPort", one["port"]) for one in ports
    )
