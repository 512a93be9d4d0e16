"""Rotary position embeddings of a block drafter, as its config describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models.rope_utils import initialize_rope

from worker.engine.drafters.fields import Fields

# Fields that mlx-lm's forms know. Others, as yarn's attention_factor, would be passed over in silence.
_KNOWN = {
    "default": frozenset[str](),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    ),
}
# There is no default, or those of mlx-lm and transformers differ.
_NEEDED = {"default": (), "yarn": ("factor", "original_max_position_embeddings")}
_SCALES = ("mscale", "mscale_all_dim")


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
    kind = scaling.pop("rope_type", None) or scaling.get("type", "default")
    scaling.pop("type", None)
    if scaling.get("truncate") is True:  # what mlx-lm does
        del scaling["truncate"]
    if not all(type(value) in (int, float) for value in scaling.values()):
        raise fields.wrong(name, "numbers")
    theta = scaling.pop("rope_theta", None) or fields.number("rope_theta")
    if kind not in _KNOWN:
        raise fields.wrong(name, f"rope_type one of {', '.join(_KNOWN)}")
    _check_scaling(fields, name, kind, scaling)
    return Rope(float(theta), {"rope_type": kind, **scaling} if kind != "default" else {})


def _check_scaling(fields: Fields, name: str, kind: str, scaling: dict[str, Any]) -> None:
    if not _KNOWN[kind].issuperset(scaling):
        raise fields.wrong(name, f"no fields of {kind} but {', '.join(sorted(_KNOWN[kind])) or 'rope_theta'}")
    if any(key not in scaling for key in _NEEDED[kind]):
        raise fields.wrong(name, f"{kind} with {' and '.join(_NEEDED[kind])}")
    if sum(key in scaling for key in _SCALES) == 1:
        raise fields.wrong(name, f"both of {' and '.join(_SCALES)}, or neither")
