import fcntl
import hashlib
import http.server
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError, DependencyUnavailable
from services.launcher.fetch import TOKEN, read_sums, run_fetch

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = bytes(range(256)) * 4096


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `files` with byte ranges; the first `cut` answers end in the middle."""

    files: dict[str, bytes]
    asked: list[tuple[str, str, str]]
    busy: list[str]  # names whose next answer is 503
    cut: int

    def do_GET(self) -> None:
        name = self.path.removeprefix("/model/")
        span = self.headers.get("Range", "")
        self.asked.append((name, span, self.headers.get("Authorization", "")))
        if name in self.busy:
            self.busy.remove(name)
            self.send_error(503)
            return
        if name not in self.files:
            self.send_error(404)
            return
        first = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        body = self.files[name][first:]
        if not body:
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if type(self).cut and name.endswith("safetensors"):
            type(self).cut -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[Handler]]:
    files = {"config.json": b"{}", "a.safetensors": WEIGHTS}
    files["SHA256SUMS"] = "".join(
        f"{hashlib.sha256(body).hexdigest()}  ./{name}\n" for name, body in files.items()
    ).encode()
    handler = type("Served", (Handler,), {"files": files, "asked": [], "busy": [], "cut": 0})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        handler.url = f"http://127.0.0.1:{httpd.server_port}/model"
        yield handler
        httpd.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited between attempts; nothing is."""
    waited: list[float] = []
    monkeypatch.setattr("services.launcher.fetch.time.sleep", waited.append)
    return waited


def fetch(server: type[Handler], directory: Path, only: str = "*") -> None:
    run_fetch(server.url, "SHA256SUMS", directory, only.split())  # type: ignore[attr-defined]


def test_a_whole_directory_and_nothing_twice(server: type[Handler], tmp_path: Path) -> None:
    fetch(server, tmp_path)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS
    server.asked.clear()
    fetch(server, tmp_path)
    assert [name for name, *_ in server.asked] == ["SHA256SUMS"]


def test_a_broken_transfer_is_continued_where_it_broke(server: type[Handler], tmp_path: Path) -> None:
    server.cut = 2
    fetch(server, tmp_path)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS
    half, three_quarters = len(WEIGHTS) // 2, len(WEIGHTS) * 3 // 4
    spans = [span for name, span, _ in server.asked if name == "a.safetensors"]
    assert spans == ["", f"bytes={half}-", f"bytes={three_quarters}-"]


def test_breaks_that_bring_bytes_never_use_up_the_attempts(server: type[Handler], tmp_path: Path) -> None:
    server.cut = 12
    fetch(server, tmp_path)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS


def test_a_server_that_is_away_is_waited_for_and_then_given_up(
    server: type[Handler], tmp_path: Path, pauses: list[float]
) -> None:
    server.busy += ["SHA256SUMS", "SHA256SUMS", "a.safetensors", "a.safetensors", "a.safetensors", "a.safetensors"]
    fetch(server, tmp_path)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS
    assert pauses == [1.0, 5.0, 1.0, 5.0, 15.0, 30.0]
    (tmp_path / "a.safetensors").unlink()
    server.busy += ["a.safetensors"] * 5
    with pytest.raises(DependencyUnavailable, match="503"):
        fetch(server, tmp_path)


def test_what_is_not_there_is_not_waited_for(server: type[Handler], tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(DependencyUnavailable, match="404"):
        run_fetch(server.url, "NOSUMS", tmp_path, ["*"])  # type: ignore[attr-defined]
    assert pauses == []


def test_who_wants_little_does_not_wait_for_who_fetches_all(server: type[Handler], tmp_path: Path) -> None:
    with (tmp_path / ".a.safetensors.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fetch(server, tmp_path, "*.json")
        waiting = threading.Thread(target=fetch, args=(server, tmp_path))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert not (tmp_path / "a.safetensors").exists()
        fcntl.flock(held, fcntl.LOCK_UN)
        waiting.join(30.0)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS


def test_wrong_content_never_gets_the_name(server: type[Handler], tmp_path: Path) -> None:
    server.files["a.safetensors"] = WEIGHTS[::-1]
    with pytest.raises(DependencyUnavailable, match="SHA-256"):
        fetch(server, tmp_path)
    assert not (tmp_path / "a.safetensors").exists()


def test_a_file_that_changed_here_is_fetched_again(server: type[Handler], tmp_path: Path) -> None:
    fetch(server, tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"damaged")
    fetch(server, tmp_path)
    assert (tmp_path / "a.safetensors").read_bytes() == WEIGHTS


def test_only_some_files_with_a_token(server: type[Handler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "t1")
    fetch(server, tmp_path, "*.json")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["config.json"]
    assert {authorization for *_, authorization in server.asked} == {"Bearer t1"}
    fetch(server, tmp_path, "*.json *.safetensors")
    assert (tmp_path / "a.safetensors").exists()
    with pytest.raises(ConfigError, match="matches no file"):
        fetch(server, tmp_path, "*.bin")


@pytest.mark.parametrize("line", ["nonsense", f"{'0' * 64}  ../up", f"{'0' * 64}  /etc/passwd", f"{'0' * 63}  short"])
def test_a_list_must_name_files_below_the_directory(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_sums(f"{'0' * 64}  fine\n{line}\n", "SHA256SUMS")


def test_it_ends_when_it_is_asked_to(server: type[Handler], tmp_path: Path) -> None:
    """By a handler of its own: as the first process of a container it has no other."""
    with (tmp_path / ".a.safetensors.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "services.cli", "fetch", "--from", server.url, "--into", str(tmp_path)]  # type: ignore[attr-defined]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while "another process is at it" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
