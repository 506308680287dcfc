"""The one translation is total over the tree and loses nothing."""

import grpc
import pytest
from google.rpc import error_details_pb2

from common.errors import (
    ComeBack,
    Incompatible,
    InternalError,
    InvalidInput,
    NoInstance,
    Overloaded,
    TandemError,
)
from common.rpc.errors import REBUILD, from_failure, from_status, to_failure, to_status
from protos import types_pb2


def tree(kind: type[TandemError] = TandemError) -> list[type[TandemError]]:
    """The project's tree; a process may have errors of its own that never leave it."""
    below = [one for child in kind.__subclasses__() for one in tree(child)]
    return [kind, *below] if kind.__module__ == "common.errors" else below


def example(kind: type[TandemError]) -> TandemError:
    if issubclass(kind, InvalidInput):
        return kind("sampling.top_p", 7, "(0, 1]")
    if kind is Incompatible:
        return Incompatible("block_tokens", 64, 16)
    if issubclass(kind, ComeBack):
        return kind("the queue", 1.25)
    return kind(f"an example of {kind.__name__}")


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind):
    error = example(kind)
    for back in (from_status(to_status(error)), from_failure(to_failure(error))):
        assert type(back) is kind
        assert str(back) == str(error)
        assert back.details() == error.details()


def test_the_table_is_total_and_reasons_are_unique():
    assert set(REBUILD) == set(tree())
    assert len({kind.reason for kind in REBUILD}) == len(REBUILD)


def test_every_code_is_a_grpc_status():
    for kind in tree():
        assert to_status(example(kind)).code in {code.value[0] for code in grpc.StatusCode}


def test_rich_details_name_field_and_retry():
    violation = error_details_pb2.BadRequest()
    details = {d.TypeName(): d for d in to_status(InvalidInput("n", 17, "1 to 16")).details}
    details["google.rpc.BadRequest"].Unpack(violation)
    assert violation.field_violations[0].field == "n"
    retry = error_details_pb2.RetryInfo()
    for refusal, code in ((Overloaded, "RESOURCE_EXHAUSTED"), (NoInstance, "UNAVAILABLE")):
        status = to_status(refusal("queue", 2.5))
        details = {d.TypeName(): d for d in status.details}
        details["google.rpc.RetryInfo"].Unpack(retry)
        assert (status.code, retry.retry_delay.ToMilliseconds()) == (grpc.StatusCode[code].value[0], 2500)


def test_an_unknown_reason_keeps_what_was_said():
    back = from_failure(types_pb2.Failure(reason="FROM_THE_FUTURE", message="hello"))
    assert type(back) is TandemError
    assert "FROM_THE_FUTURE" in str(back)
    assert "hello" in str(back)


def test_a_status_without_details_of_ours_is_not_ours():
    status = to_status(InternalError("x"))
    del status.details[:]
    assert from_status(status) is None
