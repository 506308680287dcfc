"""Every connection that the system makes passes the network policies, and little else does."""

import pytest

from tests.helm.chart import Chart
from tests.helm.network import End, allowed
from tests.helm.objects import Object, component, pods
from tests.helm.test_matrix import GPU_SWITCHES, SWITCHES

ANY_PORT = 41234  # sockets of gloo, NCCL, NVSHMEM and UCX choose theirs as they go
DNS = End({"k8s-app": "kube-dns"}, "kube-system")
CLIENT, STRANGER = End({"app": "client"}), End({"app": "client"}, "elsewhere")
PROMETHEUS = End({"app": "prometheus"}, "monitoring")
OUTSIDE, OUTSIDE_6 = End(address="203.0.113.7"), End(address="2001:db8::7")

NEEDED = [
    *(("scheduler", role, port) for role in ("prefill", "decode") for port in (7100, 7107)),
    ("decode", "prefill", 7100),
    ("decode", "prefill", ANY_PORT),
    *((role, role, port) for role in ("prefill", "decode") for port in (29500, ANY_PORT)),
    *((role, "redis", 6379) for role in ("scheduler", "prefill", "decode", "doctor")),
    *((role, "nats", 4222) for role in ("scheduler", "prefill", "decode", "doctor", "autoscaler")),
    *(("doctor", role, 7100) for role in ("prefill", "decode")),
    ("autoscaler", "scheduler", 7000),
    ("test", "scheduler", 7000),
    *((role, DNS, 53) for role in ("scheduler", "prefill", "decode", "doctor", "autoscaler", "test")),
    *(("autoscaler", api, port) for api in (OUTSIDE, OUTSIDE_6) for port in (443, 6443)),
    *((CLIENT, "scheduler", port) for port in (7000, 8000)),
    *((PROMETHEUS, role, 9200) for role in ("prefill", "decode")),
    (PROMETHEUS, "decode", 9207),
    (PROMETHEUS, "scheduler", 9100),
    (PROMETHEUS, "autoscaler", 9300),
]
REFUSED = [
    *((CLIENT, role, port) for role in ("prefill", "decode") for port in (7100, 29500, ANY_PORT)),
    (CLIENT, "redis", 6379),
    (CLIENT, "nats", 4222),
    (STRANGER, "scheduler", 7000),
    (PROMETHEUS, "prefill", 7100),
    (PROMETHEUS, "decode", 9208),
    *((role, OUTSIDE, 443) for role in ("scheduler", "prefill", "decode", "redis", "nats", "test")),
    ("redis", "prefill", 7100),
    ("nats", DNS, 53),
    ("autoscaler", "decode", 7100),
    ("test", "decode", 7100),
    ("autoscaler", OUTSIDE, 22),
]


@pytest.fixture(scope="module")
def objects(helm4: Chart) -> list[Object]:
    return helm4.objects("h100-ep16", ["autoscaler.enabled=true"])


def end(objects: list[Object], who: End | str) -> End:
    if isinstance(who, End):
        return who
    labels = next(t["metadata"]["labels"] for _, t in pods(objects) if component(t) == who)
    return End(labels)


def passes(objects: list[Object], source: End | str, target: End | str, port: int) -> bool:
    policies = [o for o in objects if o["kind"] == "NetworkPolicy"]
    protocol = "UDP" if port == 53 else "TCP"
    return allowed(policies, end(objects, source), end(objects, target), port, protocol)


@pytest.mark.parametrize(("source", "target", "port"), NEEDED)
def test_what_the_system_needs_passes(objects: list[Object], source: End | str, target: End | str, port: int) -> None:
    assert passes(objects, source, target, port)


@pytest.mark.parametrize(("source", "target", "port"), REFUSED)
def test_what_nobody_needs_does_not(objects: list[Object], source: End | str, target: End | str, port: int) -> None:
    assert not passes(objects, source, target, port)


@pytest.mark.parametrize("outside", [OUTSIDE, OUTSIDE_6])
def test_what_is_outside_is_reached_when_it_is_needed(helm4: Chart, outside: End) -> None:
    external = helm4.objects("h100-ep16", SWITCHES["external"])
    loads = helm4.objects("h100-ep16", GPU_SWITCHES["download-claim"])
    for role in ("scheduler", "prefill", "decode", "doctor"):
        assert passes(external, role, outside, 6380)
        assert passes(loads, role, outside, 443)
    narrow = "networkPolicy.dependencies[0].ipBlock.cidr=10.0.0.0/8"
    assert not passes(helm4.objects("h100-ep16", [*SWITCHES["external"], narrow]), "prefill", outside, 6380)


def test_parts_of_one_cluster_in_two_releases_reach_one_another_when_told(helm4: Chart) -> None:
    label = "app\\.kubernetes\\.io/instance"
    told = [
        f"networkPolicy.partners[0].podSelector.matchLabels.{label}=decoders",
        "decode.enabled=false",
    ]
    decoder = End({"app.kubernetes.io/name": "tandem", "app.kubernetes.io/instance": "decoders"})
    for settings, wanted in ((told, True), (told[1:], False)):
        prefillers = helm4.objects("h100-ep16", settings)
        assert passes(prefillers, decoder, "prefill", ANY_PORT) is wanted
        assert passes(prefillers, "scheduler", decoder, 7100) is wanted
        assert passes(prefillers, decoder, "redis", 6379) is wanted


def test_clients_from_outside_pass_when_they_are_named(helm4: Chart) -> None:
    named = helm4.objects("local", ["networkPolicy.clients[0].ipBlock.cidr=203.0.113.0/24"])
    assert passes(named, OUTSIDE, "scheduler", 8000)
    assert not passes(named, CLIENT, "scheduler", 8000)
