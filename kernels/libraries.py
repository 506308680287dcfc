"""The libraries of the extra `gpu`, imported when a kernel that needs them first runs."""

import importlib
from types import ModuleType

from kernels.errors import KernelUnavailableError

# module: the package that brings it
PACKAGES = {
    "deep_gemm": "sgl-deep-gemm",
    "flash_mla": "tokenspeed-flashmla",
    "flashinfer": "flashinfer-python",
    "flashinfer.mla": "flashinfer-python",
    "flashinfer.prefill": "flashinfer-python",
}


def library(module: str, kernel: str) -> ModuleType:
    """Import `module` for `kernel`.

    Raises:
        KernelUnavailableError: its package is not installed; there is no other path.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise KernelUnavailableError(kernel, PACKAGES[module]) from error
