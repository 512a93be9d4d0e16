import math

import pytest
from pydantic import ValidationError

from api.schemas import RequestBody


@pytest.mark.parametrize(
    "field", [{"logit_bias": {5: math.inf}}, {"repetition_penalty": math.inf}, {"temperature": math.nan}]
)
def test_a_parameter_is_a_finite_number(field: dict[str, object]) -> None:
    """JSON has no infinity: on its way to a worker it would become null, which means not asked for."""
    with pytest.raises(ValidationError, match="finite"):
        RequestBody.model_validate({"prompt": "p", **field})
