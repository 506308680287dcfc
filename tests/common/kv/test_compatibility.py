from dataclasses import fields, replace

import pytest

from common.errors import Incompatible
from common.kv.compatibility import check_compatible
from common.request import Compatibility

OURS = Compatibility("fp", "c1", "bfloat16", 64, 62, 576, 1)


def test_equal_sides_pass():
    check_compatible(OURS, replace(OURS))


@pytest.mark.parametrize("field", [field.name for field in fields(Compatibility)])
def test_the_differing_field_is_named(field):
    value = getattr(OURS, field)
    theirs = replace(OURS, **{field: value + 1 if isinstance(value, int) else value + "x"})
    with pytest.raises(Incompatible) as raised:
        check_compatible(OURS, theirs)
    assert raised.value.field == field
    assert raised.value.details() == {"field": field, "ours": str(value), "theirs": str(getattr(theirs, field))}
