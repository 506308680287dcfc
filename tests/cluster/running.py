"""A running cluster as tests use it: ask, count, wait until idle, find processes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil

from common.rpc.clients import InferenceClient
from common.rpc.inference_data import GenerateRequest, InstanceInfo, SamplingOptions, Stopping, Usage
from services.launcher.cluster import LocalCluster

START_TIMEOUT_S = 300.0  # these bounds are for machines that do much else; nothing waits so long on a quiet one
ANSWER_TIMEOUT_S = 240.0


@dataclass
class Answer:
    request_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    ledger_sum_s: float = 0.0
    ledger_total_s: float = 0.0


def greedy(prompt: list[int], tokens: int, **rest: object) -> GenerateRequest:
    return GenerateRequest(
        token_ids=tuple(prompt),
        sampling=SamplingOptions(temperature=0.0),
        stopping=Stopping(max_tokens=tokens, ignore_eos=True),
        **rest,  # type: ignore[arg-type]
    )


async def ask(
    client: InferenceClient, request: GenerateRequest, on_token: Callable[[int], None] | None = None
) -> Answer:
    """The whole answer; `on_token` hears how many tokens have come."""
    answer = Answer()
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        async for delta in client.generate(request):
            answer.request_id = delta.request_id
            answer.token_ids += delta.token_ids
            if delta.token_ids and on_token is not None:
                on_token(len(answer.token_ids))
            if delta.usage is not None and delta.ledger is not None:
                answer.usage = delta.usage
                answer.ledger_sum_s = sum(seconds for _, seconds in delta.ledger.entries)
                answer.ledger_total_s = delta.ledger.total_s
    return answer


class RunningCluster:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    @property
    def address(self) -> str:
        return self.cluster.schedulers[0]

    def client(self) -> InferenceClient:
        return InferenceClient(self.address)

    def instances(self) -> list[InstanceInfo]:
        cluster = self.cluster.ask(self.address)
        assert cluster is not None, "the scheduler does not answer"
        return list(cluster.instances)

    def wait_for(self, what: str, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}; {self.instances()}\n{self.logs()}"
            time.sleep(0.05)

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """No live request, nothing queued or running, every block free or evictable."""

        def idle() -> bool:
            cluster = self.cluster.ask(self.address)
            return (
                cluster is not None
                and cluster.live_requests == 0
                and all(i.running == 0 and i.queued_tokens == 0 for i in cluster.instances)
                and all(i.free_blocks == i.total_blocks for i in cluster.instances)
            )

        self.wait_for("idle level", idle, timeout_s)

    def ranks(self, pod: str) -> list[psutil.Process]:
        """The rank processes of a pod."""
        return psutil.Process(self.cluster.children[pod].pid).children()

    def log(self, process: str) -> str:
        return (self.cluster.run.logs / f"{process}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        return "\n".join(
            f"== {name}\n" + "\n".join(self.log(name).splitlines()[-15:]) for name in self.cluster.children
        )

    def stop(self) -> None:
        running = [child for child in self.cluster.children.values() if child.running()]
        killed = self.cluster.stop()
        assert killed == [], f"did not end by themselves: {killed}\n{self.logs()}"
        failed = {child.name: child.code() for child in running if child.code() != 0}
        assert failed == {}, f"did not end in order: {failed}\n{self.logs()}"

    def __iter__(self) -> Iterator[str]:
        return iter(self.cluster.children)
