"""A site unlike the default one: IPv6 alone, and Redis and NATS elsewhere, with TLS and passwords out of secrets."""

import socket
from collections.abc import Iterator

import pytest

from tests.helm.chart import Chart
from tests.helm.running import Release, rendered
from tests.helm.test_matrix import SWITCHES
from tests.helm.tls_servers import OPENSSL, tls_servers

ROLES = ("prefill", "decode", "scheduler")


@pytest.fixture(scope="module")
def site(helm4: Chart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    if OPENSSL is None or not socket.has_dualstack_ipv6():
        pytest.skip("needs openssl and IPv6")
    directory = tmp_path_factory.mktemp("site")
    with tls_servers(directory) as (ca, redis_url, nats_url):
        release = rendered(helm4, SWITCHES["external"], directory, address="::1")
        release.secrets = {"TANDEM_REDIS_URL": redis_url, "TANDEM_NATS_URL": nats_url}
        release.mounts["/etc/tandem-ca/ca.crt"] = ca
        yield release
        release.stop()


@pytest.mark.helm
def test_pods_reach_what_is_outside_and_one_another(site: Release) -> None:
    for role in ROLES:
        site.start(role)
    for role in ROLES:
        site.started[role].wait("startupProbe", 200, 120)
        site.started[role].wait("readinessProbe", 200, 60)
        assert site.started[role].address == "::1"
    done = site.run("test", "request")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " generated," in done.stderr


@pytest.mark.helm
@pytest.mark.parametrize("role", ["doctor", "prefill"])
def test_the_doctor_has_nothing_against_it(site: Release, role: str) -> None:
    done = site.run(role, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.helm
def test_without_the_authority_nothing_is_trusted(site: Release) -> None:
    ca = site.mounts.pop("/etc/tandem-ca/ca.crt")
    done = site.run("doctor", "doctor")
    site.mounts["/etc/tandem-ca/ca.crt"] = ca
    assert done.returncode == 1
    assert "redis-untrusted" in done.stdout
    assert "nats-untrusted" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr
