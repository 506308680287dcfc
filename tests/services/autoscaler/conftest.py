import pytest

from services.autoscaler.kubernetes_api import KubernetesApi
from tests.fakes.kubernetes_api import FakeKubernetes


@pytest.fixture
def kubernetes():
    fake = FakeKubernetes()
    yield fake
    fake.close()


@pytest.fixture
def api(kubernetes):
    api = KubernetesApi(kubernetes.configuration(), "default", timeout_s=2.0)
    yield api
    api.close()
