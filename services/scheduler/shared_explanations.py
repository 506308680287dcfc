"""Explanations of recent requests: asked of any replica, given by the one that served the request."""

import base64
import binascii
from functools import partial

from common.bus.connection import Bus
from common.bus.messages import ExplanationAnswer, ExplanationQuestion
from common.bus.subjects import Subjects
from common.errors import InvalidInput
from common.rpc.convert_inference import explanation_from_bytes, explanation_to_bytes
from common.rpc.inference_data import Explanation
from services.scheduler.replica import Replica

ANSWER_WITHIN_S = 0.3


async def share_explanations(replica: Replica, bus: Bus, subjects: Subjects) -> None:
    """Answer the other replicas, and from now on ask them about a request that was not served here.

    Raises:
        DependencyUnavailable: the connection is closed.
    """

    def answer(question: ExplanationQuestion) -> ExplanationAnswer:
        known = replica.core.explain_here(question.request_id)
        told = "" if known is None else base64.b64encode(explanation_to_bytes(known)).decode()
        return ExplanationAnswer(replica.identity, told)

    await bus.answer(subjects.explain, ExplanationQuestion, answer)
    replica.around.explain_elsewhere = partial(explain_elsewhere, bus, subjects)


async def explain_elsewhere(bus: Bus, subjects: Subjects, request_id: str) -> Explanation | None:
    """Ask the other replicas; None when none of those that answered in time served the request.

    Raises:
        DependencyUnavailable: they cannot be asked now.
        InvalidInput: what one of them told is no explanation.
    """
    answers = await bus.ask(
        subjects.explain,
        ExplanationQuestion(request_id),
        ExplanationAnswer,
        enough=lambda answer: bool(answer.explanation),
        within_s=ANSWER_WITHIN_S,
    )
    told = next((answer.explanation for answer in answers if answer.explanation), "")
    if not told:
        return None
    try:
        return explanation_from_bytes(base64.b64decode(told, validate=True))
    except binascii.Error as error:
        raise InvalidInput("ExplanationAnswer.explanation", told, "must be base64") from error
