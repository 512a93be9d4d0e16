"""Loading an MTP head: bring every stored layout into one form, check it against the target, and build the module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from api.errors import ModelError
from worker.engine.drafters.checkpoint import take_packing
from worker.engine.drafters.mtp.experts import missing_experts, stacked
from worker.engine.drafters.mtp.head import MtpHead, new_head
from worker.engine.drafters.mtp.manifest import Quantization
from worker.engine.drafters.mtp.norms import is_norm, with_multiplier_norms
from worker.engine.drafters.mtp.source import MtpSource, tensors_of
from worker.engine.memory import ReadWeights, read_weights
from worker.engine.verify.taps import head_and_inner

Tensors = Mapping[str, mx.array]


def load_mtp(source: MtpSource, model: Any, read: ReadWeights = read_weights) -> MtpHead:
    """The head of `source` for the target `model`, in the type that the target computes in. read: reads its weights.

    Raises ModelError when tensors lack or are too many, when a shape is not the target's, and when the norms follow no
    convention.
    """
    _refuse(source, "lacks", missing_experts(source.tensors))
    tensors = stacked(_stored(source))
    head = new_head(model, experts=_experts(tensors))
    take_packing(head, tensors, lambda name: _where(source, name))
    _check(head, tensors, source)
    tensors = with_multiplier_norms(tensors, source.contract.zero_centred, source.directory)
    head.load_weights(list(tensors.items()))
    if source.quantization is not None:
        _quantize(head, model, source.quantization)
    head.set_dtype(_embedded_type(model))
    head.eval()
    tensors.clear()  # so that each stored one goes when it has been converted
    read(head)
    return head


def _stored(source: MtpSource) -> dict[str, mx.array]:
    files = {file: tensors_of(file) for file in source.files}
    return {name: files[stored.file][stored.name] for name, stored in source.tensors.items()}


def _experts(tensors: Tensors) -> int:
    """Of the head itself: a target whose experts were pruned may have fewer."""
    router = tensors.get("layers.0.mlp.gate.weight")
    return 0 if router is None else router.shape[0]


def _check(head: MtpHead, tensors: Tensors, source: MtpSource) -> None:
    expected = dict(tree_flatten(head.parameters()))
    _refuse(source, "lacks", expected.keys() - tensors.keys())
    _refuse(source, "has unknown", tensors.keys() - expected.keys())
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{_where(source, name)} is {_shape(tensor)}, and the target needs {_shape(expected[name])}; is this "
                "the head of another model?"
            )
    assert all(is_norm(name) == (tensor.ndim == 1) for name, tensor in tensors.items() if name.endswith("weight"))


def _refuse(source: MtpSource, what: str, names: Iterable[str]) -> None:
    if listed := ", ".join(sorted(names)):
        files = ", ".join(map(str, source.files))
        raise ModelError(f"{files}: the MTP head {what} tensors: {listed}")


def _where(source: MtpSource, name: str) -> str:
    """File and stored name of a tensor; its path in the head where it was put together from several."""
    return str(source.tensors.get(name) or f"{source.directory}: MTP tensor {name}")


def _shape(tensor: mx.array | None) -> str:
    return "missing" if tensor is None else str(list(tensor.shape))


def _quantize(head: MtpHead, model: Any, wanted: Quantization) -> None:
    """Quantize the decoder layer as its target's are; `fc` and the norms keep their type."""
    rule = getattr(head_and_inner(model)[0], "quant_predicate", None)

    def predicate(path: str, module: Any) -> Any:
        if path == "fc" or not hasattr(module, "to_quantized"):
            return False
        return rule is None or rule(path, module)

    nn.quantize(head, wanted.group_size, wanted.bits, mode=wanted.mode, class_predicate=predicate)


def _embedded_type(model: Any) -> mx.Dtype:
    """The type of the target's embedded tokens, and so of its hidden states."""
    _, inner = head_and_inner(model)
    dtype: mx.Dtype = inner.embed_tokens(mx.zeros((1,), dtype=mx.int32)).dtype
    return dtype
