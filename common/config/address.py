"""Addresses as one text: of two parts, and as logs and errors may show them."""

import re

_USER_AND_PASSWORD = re.compile(r"(?<=://)([^/@]*)@")


def without_password(url: str) -> str:
    """The URL, or several with commas between, less whatever stands before an ``@``."""
    return _USER_AND_PASSWORD.sub("***@", url)


def host_port(host: str, port: int) -> str:
    """``host:port``; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
