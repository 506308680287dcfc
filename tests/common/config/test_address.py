import pytest

from common.config.address import without_password


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
