"""Cancels by request id: asked of any replica, done by the one that has the stream."""

from functools import partial

from common.bus.connection import Bus
from common.bus.messages import RequestCancel, RequestCancelAnswer
from common.bus.subjects import Subjects
from common.rpc.inference_data import CancelOutcome
from services.scheduler.replica import Replica

ANSWER_WITHIN_S = 0.3


async def share_cancels(replica: Replica, bus: Bus, subjects: Subjects) -> None:
    """Answer the other replicas, and from now on ask them when a request is not here.

    Raises:
        DependencyUnavailable: the connection is closed.
    """

    def answer(wish: RequestCancel) -> RequestCancelAnswer:
        return RequestCancelAnswer(replica.identity, replica.core.cancel_here(wish.request_id))

    await bus.answer(subjects.cancel_request, RequestCancel, answer)
    replica.around.cancel_elsewhere = partial(cancel_elsewhere, bus, subjects)


async def cancel_elsewhere(bus: Bus, subjects: Subjects, request_id: str) -> CancelOutcome:
    """Ask the other replicas.

    Raises:
        DependencyUnavailable: they cannot be asked now.
    """
    answers = await bus.ask(
        subjects.cancel_request,
        RequestCancel(request_id),
        RequestCancelAnswer,
        enough=lambda answer: answer.found,
        within_s=ANSWER_WITHIN_S,
    )
    return CancelOutcome(any(answer.found for answer in answers), 1 + len(answers))
