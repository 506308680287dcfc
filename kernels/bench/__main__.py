"""`python -m kernels.bench`, where the command `tandem` is not installed."""

from kernels.bench.cli import app

app()
