"""Where a running cluster writes its logs, its resolved configuration and its endpoints, and how others find it."""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from common.errors import ConfigError, DependencyUnavailable

RUNS = "TANDEM_RUNS"  # environment: the directory of run directories, ./run unless set
_ENDPOINT = "endpoint.json"
_LOCK = "lock"  # held by the launcher, with its process id; stays, for a name that comes and goes locks nothing


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a client or a tool needs to reach a cluster of this machine."""

    cluster: str
    model: str
    pid: Annotated[int, Field(gt=0)]  # of the launcher
    schedulers: Annotated[tuple[str, ...], Field(min_length=1)]  # host:port of the gRPC front door, by replica
    http: tuple[str, ...]
    metrics: tuple[str, ...]  # every process's
    redis_url: str
    nats_url: str


def runs_directory() -> Path:
    return Path(os.environ.get(RUNS, "run"))


class RunDirectory:
    """One cluster's directory. Made new for each start; what an ended cluster left there is overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None  # file descriptor, which processes that are started do not get

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make the directory, empty of an earlier run's logs, and keep it from others until `release`.

        Raises:
            ConfigError: a live cluster is using it, or it cannot be made or written.
        """
        run = cls(path)
        try:
            run.logs.mkdir(parents=True, exist_ok=True)
            run._take()
            for log in run.logs.glob("*.log"):
                log.unlink()
            run.remove_endpoint()
        except OSError as error:
            run.release()
            raise ConfigError(f"run directory {path}: cannot be used: {error.strerror}") from error
        except ConfigError:
            run.release()
            raise
        return run

    def release(self) -> None:
        """Let others have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        file = self.path / _LOCK
        self._lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read_text(encoding="utf-8").strip()  # nothing yet, of one that starts at this moment
            raise ConfigError(
                f"{self.path}: in use by the cluster of {f'process {holder}' if holder else 'another start'}"
            ) from error
        if (endpoint := self.live_endpoint()) is not None:
            raise ConfigError(f"{self.path}: in use by cluster {endpoint.cluster}, process {endpoint.pid}")
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def config(self) -> Path:
        """The resolved configuration, ports and addresses filled in."""
        return self.path / "cluster.yaml"

    def write_endpoint(self, endpoint: Endpoint) -> None:
        scratch = self.path / f".{_ENDPOINT}"
        scratch.write_text(json.dumps(asdict(endpoint), indent=1) + "\n", encoding="utf-8")
        scratch.replace(self.path / _ENDPOINT)

    def remove_endpoint(self) -> None:
        (self.path / _ENDPOINT).unlink(missing_ok=True)

    def live_endpoint(self) -> Endpoint | None:
        """The endpoint, if the launcher that wrote it still runs.

        Raises:
            ConfigError: the file is not what a launcher wrote; names file and field.
        """
        file = self.path / _ENDPOINT
        try:
            endpoint = TypeAdapter(Endpoint).validate_json(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'file'}: {f['msg']}" for f in error.errors())
            raise ConfigError(f"{file}: not a cluster's endpoint ({faults}); delete it if none runs here") from error
        return endpoint if _alive(endpoint.pid) else None


def find_endpoint(runs: Path | None = None) -> Endpoint:
    """The one cluster that runs here.

    Raises:
        DependencyUnavailable: none runs, or several do; says what was looked at.
        ConfigError: what is written there cannot be read.
    """
    directory = runs or runs_directory()
    found = [
        endpoint
        for path in (sorted(directory.iterdir()) if directory.is_dir() else [])
        if path.is_dir() and (endpoint := RunDirectory(path).live_endpoint()) is not None
    ]
    if not found:
        raise DependencyUnavailable(
            f"no cluster runs under {directory.absolute()}: start one with `tandem up`, set {RUNS} to the directory "
            "where its run directory lies, or name its scheduler with --at host:port"
        )
    if len(found) > 1:
        names = ", ".join(f"{endpoint.cluster} at {endpoint.schedulers[0]}" for endpoint in found)
        raise DependencyUnavailable(f"several clusters run under {directory.absolute()} ({names}); name one with --at")
    return found[0]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
