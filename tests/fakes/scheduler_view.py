"""A scheduler that answers GetCluster with what a test put there."""

import grpc

from common.errors import DependencyUnavailable
from common.rpc.convert_inference import cluster_to_wire
from common.rpc.errors import abort
from common.rpc.inference_data import ClusterInfo, InstanceInfo
from common.rpc.server import build_server
from protos import inference_pb2_grpc

IDLE = {"max_running": 10, "free_blocks": 100, "total_blocks": 100, "report_age_ms": 100, "tokens_per_s": 1000.0}


def instance(role, group, state="ready", number=0, **facts):
    name = f"{role}-{group}-{number}"
    return InstanceInfo(name, role, f"{role}-{group}", f"{name}:1", 7, state, **{**IDLE, **facts})


class FakeSchedulerView(inference_pb2_grpc.InferenceServicer):
    def __init__(self):
        self.info = ClusterInfo("m", (), "s", 0)
        self.silent = False
        self.server: grpc.aio.Server = build_server()
        self.address = ""

    async def start(self):
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    async def stop(self):
        await self.server.stop(0)

    def show(self, *instances, waiting_requests=0, waiting_tokens=0):
        self.info = ClusterInfo("m", instances, "s", 0, waiting_requests, waiting_tokens)

    async def GetCluster(self, request, context):
        if self.silent:
            await abort(context, DependencyUnavailable("not now"))
        return cluster_to_wire(self.info)
