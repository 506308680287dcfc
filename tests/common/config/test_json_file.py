import json
from pathlib import Path

import pytest

from common.config.json_file import read_json_object
from common.config.tokenizer_file import read_tokenizer
from common.errors import CheckpointError
from tests.fakes.tokenizer import tokenizer_document

NOT_OBJECTS = {
    b"": "not JSON",
    b'{"a": ': "not JSON",
    b"[1, 2]": "holds list, not an object",
    b"\xff\xfe{}": "not a text in UTF-8",
    b'{"a": ' + b"[" * 100_000: "nested too deep",
}


@pytest.mark.parametrize(("content", "reason"), NOT_OBJECTS.items(), ids=NOT_OBJECTS.values())
def test_what_is_no_object_is_refused_by_file_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{file}: .*{reason}"):
        read_json_object(file)


def test_what_cannot_be_read_is_refused_by_file_and_reason(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.json: cannot be read: No such file"):
        read_json_object(tmp_path / "none.json")
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_json_object(tmp_path)


def test_a_tokenizer_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    document = tokenizer_document()
    file.write_text(json.dumps(document))
    assert read_tokenizer(file).get_vocab_size() == len(document["model"]["vocab"]) + 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"type": "BPE"}}, "not a tokenizer: .*"),
        ({"model": None}, "not a tokenizer: .*"),
        ({"added_tokens": [{"content": "x"}]}, "not a tokenizer: .*"),
        ({"added_tokens": {}}, "not a tokenizer: .*"),
        ({"decoder": {"type": "none such"}}, "not a tokenizer: .*"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}, "has no tokens"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused_by_file_and_reason(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**tokenizer_document(), **change}))
    with pytest.raises(CheckpointError, match=f"{file}: {reason}"):
        read_tokenizer(file)
