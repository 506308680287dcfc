"""Errors of kernel launchers. Each names the argument that is wrong, what it is and what is taken."""


class KernelArgumentError(ValueError):
    """An argument has the wrong shape, stride, type or device; nothing was launched.

    Args:
        argument: its name in the launcher's signature.
        value: what was given (a shape, a type, a device).
        limit: what is taken, in words.
    """

    def __init__(self, argument: str, value: object, limit: str) -> None:
        self.argument, self.value, self.limit = argument, value, limit
        super().__init__(f"{argument} is {value}: must be {limit}")


class KernelUnavailableError(ImportError):
    """A kernel's library is not installed; names the package and the extra that brings it."""

    def __init__(self, kernel: str, package: str) -> None:
        self.kernel, self.package = kernel, package
        super().__init__(f"{kernel} needs {package}: install tandem-serve[gpu]", name=package)
