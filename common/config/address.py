"""Addresses as logs and errors may show them."""

import re

_USER_AND_PASSWORD = re.compile(r"(?<=://)([^/@]*)@")


def without_password(url: str) -> str:
    """The URL, or several with commas between, less whatever stands before an ``@``."""
    return _USER_AND_PASSWORD.sub("***@", url)
