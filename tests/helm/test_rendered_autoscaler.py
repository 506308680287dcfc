"""The autoscaler as it is rendered over LeaderWorkerSets: it scales them, with the rights that it has and no others."""

import time
from collections.abc import Iterator

import pytest

from tests.fakes.kubernetes_api import FakeKubernetes
from tests.helm.chart import Chart
from tests.helm.cluster_double import asked_rights, granted_rights, kubeconfig_of, put_pools
from tests.helm.running import Release, rendered
from tests.helm.test_rendered_commands import SETTINGS

POOL = "prod-tandem-decode"


@pytest.fixture
def release(helm4: Chart, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Release, FakeKubernetes]]:
    kubernetes = FakeKubernetes()
    settings = [*SETTINGS, "groupController=LeaderWorkerSet"]
    release = rendered(helm4, settings, tmp_path_factory.mktemp("release"))
    put_pools(kubernetes, release.objects, missing=POOL)
    release.outside["KUBECONFIG"] = str(kubeconfig_of(kubernetes, release.directory))
    yield release, kubernetes
    release.stop()
    kubernetes.close()


@pytest.mark.helm
def test_it_scales_with_the_rights_that_it_has(release: tuple[Release, FakeKubernetes]) -> None:
    running, kubernetes = release
    for role in ("redis", "nats", "scheduler", "autoscaler"):
        running.start(role)
    autoscaler = running.started["autoscaler"]
    autoscaler.wait("readinessProbe", 200, 120)
    granted = granted_rights(running.objects)

    def scaled_and_shown() -> bool:
        return (
            kubernetes.get("leaderworkersets", POOL)["spec"]["replicas"] == 2
            and 'tandem_autoscaler_groups{model="tandem-bard",role="decode"} 2.0' in autoscaler.ask("/metrics")[1]
            and asked_rights(kubernetes) >= granted
        )

    deadline_s = time.monotonic() + 60.0
    while not scaled_and_shown():
        assert time.monotonic() < deadline_s, autoscaler.log.read_text()[-3000:]
        time.sleep(0.05)
    assert asked_rights(kubernetes) == granted
