"""Why recent requests were placed where they were."""

from collections import OrderedDict

from common.rpc.inference_data import Explanation


class ExplainStore:
    """The explanations of the last `capacity` requests."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._explanations: OrderedDict[str, Explanation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._explanations)

    def put(self, explanation: Explanation) -> None:
        self._explanations[explanation.request_id] = explanation
        self._explanations.move_to_end(explanation.request_id)
        while len(self._explanations) > self._capacity:
            self._explanations.popitem(last=False)

    def get(self, request_id: str) -> Explanation | None:
        return self._explanations.get(request_id)
