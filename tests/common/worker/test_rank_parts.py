import json
from pathlib import Path

import pytest

from common.errors import CheckpointError
from common.worker.rank_parts import undrawable_ids
from tests.fakes.tokenizer import tokenizer_document


def test_padding_of_the_vocabulary_cannot_be_drawn(tmp_path: Path) -> None:
    assert undrawable_ids(tmp_path, 512) is None
    document = tokenizer_document()
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokens = len(document["model"]["vocab"]) + 4
    undrawable = undrawable_ids(tmp_path, 512)
    assert undrawable is not None
    assert undrawable.tolist() == [False] * tokens + [True] * (512 - tokens)
    assert undrawable_ids(tmp_path, tokens) is None


def test_a_malformed_tokenizer_is_refused_by_file_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    for content, reason in (("{", "not JSON"), ("{}", "not a tokenizer")):
        file.write_text(content)
        with pytest.raises(CheckpointError, match=f"{file}: {reason}"):
            undrawable_ids(tmp_path, 512)
