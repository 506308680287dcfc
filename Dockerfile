# syntax=docker/dockerfile:1
# Two images of one project: `cpu` runs scheduler, autoscaler, hooks, bundled Redis and NATS and, with the demonstration
# model, whole clusters on CPUs; `gpu` runs prefill and decode on H100 and H200.
#
#   docker build --target cpu -t tandem-serve:0.1.0-cpu .
#   docker build --target gpu -t tandem-serve:0.1.0-gpu .
#
# Every package has one version, in constraints-*.txt, which `make constraints` writes.
# Bases come without a registry's name; a mirror is given as --build-arg CPU_BASE=... with a digest.
ARG CPU_BASE=python:3.12.11-slim-bookworm
ARG GPU_BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
# The CPU build of torch where an index has it, such as --build-arg TORCH=torch==2.13.0+cpu.
ARG TORCH=torch==2.13.0

FROM ${CPU_BASE} AS cpu
ARG TORCH
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /srv/venv
ENV PATH=/srv/venv/bin:$PATH
WORKDIR /app
COPY pyproject.toml constraints-cpu.txt README.md ./
COPY kernels kernels
COPY protos protos
COPY common common
COPY services services
COPY loadgen loadgen
RUN pip install --constraint constraints-cpu.txt "${TORCH}" '.[cpu]'
COPY models models
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp tandem
USER 10001:10001
# A command is given by whoever runs the image; without one it says what there is.
CMD ["tandem", "--help"]

FROM ${GPU_BASE} AS gpu
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The compiler and the headers stay: Triton, DeepGEMM and FlashInfer compile for the shapes that they meet.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3.12 python3.12-venv python3.12-dev g++ libibverbs1 librdmacm1 ibverbs-providers \
    && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /srv/venv
ENV PATH=/srv/venv/bin:$PATH CUDA_HOME=/usr/local/cuda
WORKDIR /app
COPY pyproject.toml constraints-gpu.txt README.md ./
COPY kernels kernels
COPY protos protos
COPY common common
COPY services services
COPY loadgen loadgen
RUN pip install --constraint constraints-gpu.txt '.[gpu]'
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp tandem
USER 10001:10001
CMD ["tandem", "--help"]
