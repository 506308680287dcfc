"""Which question is asked, and the refusal of options that would have no part in its answer."""

from collections.abc import Mapping
from enum import StrEnum

from common.errors import InvalidInput


class Question(StrEnum):
    """What the command can be asked, as an error calls it."""

    SWEEP = "a sweep"
    DEPLOYMENT = "--ep"
    WORKLOAD = "--workload"
    FIGURES = "--figures"
    FIT = "--fit"
    DOCUMENTS = "--write-docs"


# The option that asks each question; none asks for a sweep.
_ASKED_BY = {
    "write_docs": Question.DOCUMENTS,
    "fit": Question.FIT,
    "figures": Question.FIGURES,
    "workload": Question.WORKLOAD,
    "ep": Question.DEPLOYMENT,
}
_SHAPE = frozenset({"model", "hardware", "stack", "drafts", "acceptance", "gpu_hour_usd", "json", "html"})
_DECODE = _SHAPE | {"cached", "redundant", "imbalance"}
_OPTIONS: dict[Question, frozenset[str]] = {
    Question.SWEEP: _DECODE | {"gpus"},
    Question.DEPLOYMENT: _DECODE | {"ep", "tp", "batch", "schedule"},
    Question.WORKLOAD: _SHAPE | {"workload", "gpus", "rate", "ttft", "itl", "hit_rate"},
    Question.FIGURES: frozenset({"figures", "tables", "json", "html"}),
    Question.FIT: frozenset({"fit", "tables", "json", "html"}),
    Question.DOCUMENTS: frozenset({"write_docs"}),
}


def question(given: Mapping[str, object]) -> Question:
    """The one question of the options given on the command line, by name.

    Raises:
        InvalidInput: two questions at once, or an option that the question does not read: it would be ignored.
    """
    asking = [name for name in _ASKED_BY if name in given]
    if len(asking) > 1:
        raise InvalidInput(asking[1], given[asking[1]], f"not together with {asking[0]}")
    asked = _ASKED_BY[asking[0]] if asking else Question.SWEEP
    for name, value in given.items():
        if name not in _OPTIONS[asked]:
            readers = " or ".join(q.value for q, names in _OPTIONS.items() if name in names)
            raise InvalidInput(name, value, f"not with {asked.value}; only {readers} reads it")
    if "rate" in given and "gpus" in given:
        raise InvalidInput("gpus", given["gpus"], "not together with rate, which finds the number of GPUs")
    return asked
