import pytest

from common.config.address import host_port, without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@redis:6379/0", "redis://***@redis:6379/0"),
        ("nats://tandem:p%40ss@a:4222,nats://tandem:x@b:4222", "nats://***@a:4222,nats://***@b:4222"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("host", "whole"), [("fd00::7", "[fd00::7]:7000"), ("10.0.0.7", "10.0.0.7:7000"), ("worker-0", "worker-0:7000")]
)
def test_hosts_and_ports_are_told_apart(host: str, whole: str) -> None:
    assert host_port(host, 7000) == whole
