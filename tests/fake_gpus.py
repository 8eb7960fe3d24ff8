"""GPUs without a GPU: tensors that know their device and shape and hold no values.

Torch refuses operations between them that a GPU would refuse, so a run of the decoder on them finds what
was left on another device. Whoever reads a value is answered 0, and is counted.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from runtime_models import NoTokenizer
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from resispec_sim.runtime.models import LoadedModel, ModelSource

CPU = torch.device("cpu")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Waits(TorchDispatchMode):
    """What the host waited for: values it read, and copies to a device that were not asynchronous."""

    def __init__(self):
        super().__init__()
        self.values = []
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in COPIES:
            source = args[1] if func is COPIES[1] else args[0]
            waits = not kwargs.get("non_blocking", len(args) > 2 and args[2])
            if waits and source.device == CPU and result.device.type == "cuda":
                self.copies.append(tuple(source.shape))
        return result


def move(module, device=None, dtype=None):
    """``module.to``, which cannot swap a fake tensor for another."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    kind = dtype if tensor.is_floating_point() else None
                    moved = tensor.detach().to(device or tensor.device, kind)
                    is_parameter = held is part._parameters
                    held[name] = torch.nn.Parameter(moved, False) if is_parameter else moved
    return module


def part_of(tensor, key):
    """``tensor[key]`` by torch's operators: the bracket itself asks a driver for the device."""
    aten, axis, indices = torch.ops.aten, 0, []
    key = key if isinstance(key, tuple) else (key,)
    n_used = sum(entry is not None and entry is not Ellipsis for entry in key)
    for entry in key:
        if entry is None:
            tensor, axis = tensor.unsqueeze(axis), axis + 1
        elif entry is Ellipsis:
            axis += tensor.dim() - n_used
        elif isinstance(entry, slice):
            tensor, axis = (
                aten.slice(tensor, axis, entry.start, entry.stop, entry.step or 1),
                axis + 1,
            )
        elif isinstance(entry, int):
            tensor = aten.select(tensor, axis, entry)
        else:
            indices += [None] * (axis - len(indices)) + [torch.as_tensor(entry)]
            axis += 1
    return aten.index(tensor, indices) if indices else tensor


def copy_(tensor, source, non_blocking=False):
    return torch.ops.aten.copy_(tensor, source, non_blocking)


def contiguous(tensor, memory_format=torch.contiguous_format):
    return tensor.clone(memory_format=memory_format)


def nested(shape):
    return [nested(shape[1:]) for _ in range(shape[0])] if shape else 0


@contextmanager
def fake_gpus(monkeypatch):
    """Within it tensors are fake, "cuda:0" and "cuda:1" exist; gives a `Waits`."""
    waits = Waits()

    def answer(kind):
        def read(tensor):
            if tensor.device.type == "cuda":
                frame = sys._getframe(1)
                waits.values.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            return nested(tuple(tensor.shape)) if kind is list else kind(0)

        return read

    def same(a, b, **_tolerance):
        assert a.device == b.device, (a.device, b.device)
        return True

    with monkeypatch.context() as patch:
        for name, kind in (
            ("tolist", list), ("item", int), ("__int__", int), ("__float__", float), ("__bool__", bool)
        ):  # fmt: skip
            patch.setattr(torch.Tensor, name, answer(kind))
        patch.setattr(FakeTensor, "tolist", answer(list))
        for name in ("equal", "allclose"):
            patch.setattr(torch, name, same)
        for name in ("synchronize", "reset_peak_memory_stats"):
            patch.setattr(torch.cuda, name, lambda _device=None: None)
        patch.setattr(torch.nn.Module, "to", move)
        patch.setattr(torch.Tensor, "__getitem__", part_of)

        def tensor(values, dtype=None, device="cpu"):
            if isinstance(values, torch.Tensor):
                return values
            known = np.asarray(values)
            if known.size and str(device) != "cpu":
                waits.copies.append(known.shape)
            kinds = {"i": torch.int64, "b": torch.bool, "f": torch.float64}
            return torch.zeros(known.shape, dtype=dtype or kinds[known.dtype.kind], device=device)

        patch.setattr(torch, "as_tensor", tensor)
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch.Tensor, "copy_", copy_)
        patch.setattr(torch.Tensor, "__invert__", lambda t: torch.bitwise_not(t))
        patch.setattr(torch.Tensor, "__setitem__", lambda t, key, new: copy_(part_of(t, key), new))
        patch.setattr(torch.Tensor, "contiguous", contiguous)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda _device=None: 0)
        with FakeTensorMode(allow_non_fake_inputs=True), waits:
            yield waits


def llama(n_layers, dtype, attention="sdpa"):
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation=attention,
    )
    model = LlamaForCausalLM(config).to("cuda:0", dtype).eval().requires_grad_(False)
    return LoadedModel(model, NoTokenizer(), ModelSource("", None, "fake"), "")


def spread(loaded):
    """The last layer, the norm and the head on a second GPU, as ``device_map="auto"`` would have it."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = loaded.model
    first, second = ("cuda:0", "cuda:1")
    places = {model.model.embed_tokens: first, model.model.rotary_emb: first}
    places |= {layer: first for layer in model.model.layers[:-1]}
    places |= {model.model.layers[-1]: second, model.model.norm: second, model.lm_head: second}
    for module, place in places.items():
        module.to(place)
        add_hook_to_module(
            module, AlignDevicesHook(place, io_same_device=False, skip_keys=["past_key_values"])
        )
    add_hook_to_module(
        model, AlignDevicesHook(first, io_same_device=True, skip_keys=["past_key_values"])
    )
    return loaded
