"""Rotary position embeddings of a block drafter, as its config describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models.rope_utils import initialize_rope

from worker.engine.drafters.dflash.fields import Fields

# Fields that mlx-lm's forms know. Others, as yarn's attention_factor, would be passed over in silence.
_KNOWN = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    ),
}
# Of these the defaults of mlx-lm and of transformers differ, or there is none.
_NEEDED = ("factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class Rope:
    """theta: the base. scaling: type and fields of a scaled form, as mlx-lm takes them; empty for the plain form."""

    theta: float
    scaling: dict[str, Any] = field(default_factory=dict)

    def build(self, head_dim: int) -> Any:
        """The embedding over all of `head_dim`: (x [1, heads, n, head_dim], offset) -> the same shape."""
        return initialize_rope(head_dim, self.theta, traditional=False, scaling_config=self.scaling or None)


def read_rope(fields: Fields) -> Rope:
    """From `rope_parameters`, or from `rope_theta` and `rope_scaling`. Raises ModelError for what is not known."""
    name = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    scaling = fields.mapping(name)
    theta = scaling.pop("rope_theta", None)
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    scaling.pop("type", None)
    if kind not in _KNOWN:
        raise fields.wrong(name, f"rope_type one of {', '.join(_KNOWN)}")
    # True is what mlx-lm does.
    unknown = [key for key, value in scaling.items() if key not in _KNOWN[kind] and (key, value) != ("truncate", True)]
    if unknown:
        raise fields.wrong(name, f"no fields of {kind} but {', '.join(sorted(_KNOWN[kind])) or 'rope_theta'}")
    missing = [key for key in _NEEDED if key in _KNOWN[kind] and key not in scaling]
    if missing:
        raise fields.wrong(name, f"{kind} with {' and '.join(missing)}")
    if not all(type(value) in (int, float) for key, value in scaling.items() if key != "truncate"):
        raise fields.wrong(name, "numbers")
    if theta is None:
        theta = fields.number("rope_theta")
    scaling.pop("truncate", None)
    return Rope(float(theta), {"rope_type": kind, **scaling} if kind != "default" else {})
