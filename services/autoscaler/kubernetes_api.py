"""The door to the API server: the few calls that are needed, each with a time limit, and the translation of errors.

Everything is read and written as the JSON that the server speaks, built-in kinds and custom ones alike.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from common.errors import ConfigError, DependencyUnavailable, TandemError

Object = dict[str, Any]


class ObjectMissing(TandemError):
    """404: there is no such object."""

    reason = "OBJECT_MISSING"


class ObjectChanged(TandemError):
    """409: somebody else wrote it since it was read, or made it first."""

    reason = "OBJECT_CHANGED"


class HistoryGone(TandemError):
    """410: changes since that version are not known any more; list again."""

    reason = "HISTORY_GONE"


@dataclass(frozen=True, slots=True)
class Resource:
    group: str
    version: str
    plural: str


LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")


class KubernetesApi:
    """One namespace of one API server. Calls block; they are made from threads.

    Every call may raise DependencyUnavailable (no answer in time, or 5xx) and ConfigError (refused: the role lacks a
    right, or the object is not what the server takes).
    """

    def __init__(self, configuration: "client.Configuration", namespace: str, timeout_s: float) -> None:
        configuration.retries = False  # whoever calls decides whether to try again
        self._client = client.ApiClient(configuration)
        self._objects = client.CustomObjectsApi(self._client)
        self._namespace = namespace
        self._timeout_s = timeout_s

    def close(self) -> None:
        self._client.close()

    def get(self, resource: Resource, name: str) -> Object:
        """
        Raises:
            ObjectMissing
        """
        with translated(f"get {resource.plural}/{name}"):
            found: Object = self._objects.get_namespaced_custom_object(*self._at(resource), name, **self._limit())
        return found

    def list(self, resource: Resource, selector: str = "") -> tuple[list[Object], str]:
        """The objects, and the version that a watch goes on from."""
        with translated(f"list {resource.plural}"):
            listed: Object = self._objects.list_namespaced_custom_object(
                *self._at(resource), label_selector=selector, **self._limit()
            )
        return list(listed["items"]), str(listed["metadata"]["resourceVersion"])

    def watch(self, resource: Resource, selector: str, version: str, window_s: int) -> Iterator[tuple[str, Object]]:
        """(ADDED, MODIFIED or DELETED, object) of changes after `version`, for `window_s`.

        Raises:
            HistoryGone
        """
        stream = watch.Watch().stream(
            self._objects.list_namespaced_custom_object,
            *self._at(resource),
            label_selector=selector,
            resource_version=version,
            timeout_seconds=window_s,
            _request_timeout=(self._timeout_s, window_s + self._timeout_s),
        )
        with translated(f"watch {resource.plural}"), closing(stream):
            for event in stream:
                yield str(event["type"]), event["raw_object"]

    def create(self, resource: Resource, body: Object) -> Object:
        """
        Raises:
            ObjectChanged: there is one already.
        """
        with translated(f"create {resource.plural}"):
            made: Object = self._objects.create_namespaced_custom_object(*self._at(resource), body, **self._limit())
        return made

    def replace(self, resource: Resource, name: str, body: Object) -> Object:
        """Write what was read and changed; its resourceVersion must still be the server's.

        Raises:
            ObjectChanged
        """
        with translated(f"replace {resource.plural}/{name}"):
            written: Object = self._objects.replace_namespaced_custom_object(
                *self._at(resource), name, body, **self._limit()
            )
        return written

    def get_scale(self, resource: Resource, name: str) -> Object:
        """
        Raises:
            ObjectMissing
        """
        with translated(f"get scale of {resource.plural}/{name}"):
            scale: Object = self._objects.get_namespaced_custom_object_scale(*self._at(resource), name, **self._limit())
        return scale

    def replace_scale(self, resource: Resource, name: str, scale: Object) -> Object:
        """As `replace`, of the scale alone."""
        with translated(f"scale {resource.plural}/{name}"):
            written: Object = self._objects.replace_namespaced_custom_object_scale(
                *self._at(resource), name, scale, **self._limit()
            )
        return written

    def _at(self, resource: Resource) -> tuple[str, str, str, str]:
        return resource.group, resource.version, self._namespace, resource.plural

    def _limit(self) -> dict[str, float]:
        return {"_request_timeout": self._timeout_s}


def cluster_configuration() -> "client.Configuration":
    """That of the pod's service account, or else of the user's kubeconfig.

    Raises:
        ConfigError: there is neither.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise ConfigError(f"neither a service account nor a kubeconfig: {error}") from error
    return configuration


@contextmanager
def translated(what: str) -> Iterator[None]:
    """The client's errors, lost connections and timeouts become errors of the tree."""
    try:
        yield
    except client.ApiException as error:
        raise _meaning(what, error.status or 0, str(error.reason)) from error
    except (HTTPError, OSError) as error:
        raise DependencyUnavailable(f"{what}: no answer of the API server: {error}") from error


def _meaning(what: str, status: int, reason: str) -> TandemError:
    said = f"{what}: {status} {reason}"
    known = {404: ObjectMissing, 409: ObjectChanged, 410: HistoryGone}
    if status in known:
        return known[status](said)
    if status == 429 or status >= 500 or status == 0:
        return DependencyUnavailable(said)
    return ConfigError(said)
