"""Redis and NATS with TLS and a password, under a certificate that only their own authority vouches for."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.servers import EmbeddedNats, EmbeddedValkey, start

OPENSSL = shutil.which("openssl")


def certify(directory: Path) -> tuple[Path, Path, Path]:
    """An authority's certificate, and certificate and key of this machine's address."""
    ca, ca_key, certificate, key = (directory / name for name in ("ca.crt", "ca.key", "server.crt", "server.key"))
    request, extra = directory / "server.csr", directory / "server.ext"
    extra.write_text("subjectAltName=IP:127.0.0.1\n")
    new_key = ["-newkey", "rsa:2048", "-nodes"]
    authority = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    days = ["-days", "2"]
    commands = (
        ["req", "-x509", *new_key, "-keyout", ca_key, "-out", ca, *days, "-subj", "/CN=test authority", *authority],
        ["req", *new_key, "-keyout", key, "-out", request, "-subj", "/CN=server"],
        [
            "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", certificate, *days,
            "-extfile", extra,
        ],
    )  # fmt: skip
    for command in commands:
        subprocess.run([str(OPENSSL), *map(str, command)], check=True, capture_output=True)
    return ca, certificate, key


@contextmanager
def tls_servers(directory: Path) -> Iterator[tuple[Path, str, str]]:
    """The authority's certificate, and the addresses of Redis and NATS as a secret would hold them."""
    ca, certificate, key = certify(directory)
    valkey = start(EmbeddedValkey, directory)
    with socket.create_connection(("127.0.0.1", valkey.port)) as admin:
        admin.sendall(b"ACL SETUSER tandem on >s3cret ~* &* +@all\r\nACL SETUSER default off\r\n")
        assert admin.recv(64).startswith(b"+OK")
    tls = ["--tls", f"--tlscert={certificate}", f"--tlskey={key}", "--user", "tandem", "--pass", "s3cret"]
    nats = start(EmbeddedNats, directory, tls)
    with _terminated(valkey.port, certificate, key) as port:
        yield ca, f"rediss://tandem:s3cret@127.0.0.1:{port}/0", f"tls://tandem:s3cret@127.0.0.1:{nats.port}"
    nats.stop()
    valkey.stop()


@contextmanager
def _terminated(plain_port: int, certificate: Path, key: Path) -> Iterator[int]:
    """A port whose TLS ends here; the bundled Valkey has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(client, server_side=True) as secret,
            socket.create_connection(("127.0.0.1", plain_port)) as plain,
        ):
            back = threading.Thread(target=pump, args=(plain, secret), daemon=True)
            back.start()
            pump(secret, plain)
            back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield int(listening.getsockname()[1])
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()
