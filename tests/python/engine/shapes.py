"""Twelve small model shapes, one for each way in which offloaders were reported to go wrong.

Every shape builds the same model from the same seed, and offers calls that take the model and a source of inputs. A
test builds a model twice, offloads one of the two, and makes the same calls on both: the values must be the same bits.
Some calls change the model (running statistics, counters, adapters); made on both, they change both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

WIDTH = 16


class Inputs:
    """Fresh tensors on a device, the same ones from the same seed whatever the device."""

    def __init__(self, device: torch.device | str, seed: int) -> None:
        self.device = torch.device(device)
        self.generator = torch.Generator().manual_seed(seed)

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def whole_numbers(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=self.generator).to(self.device)


Call = Callable[[Any, Inputs], Any]


@dataclass(frozen=True)
class Shape:
    """How to make a model and what to do with it.

    Attributes:
        name: T1 to T12.
        build: makes the model from a seed: a module, or a pipeline with `components`.
        calls: by name, in the order in which a pass makes them.
        grow: brings a model to its largest within a pass; for shapes that change.
    """

    name: str
    build: Callable[[int], Any]
    calls: Mapping[str, Call]
    grow: Callable[[Any], Any] | None = None

    def parts(self, model: Any) -> dict[str, nn.Module]:
        """The modules to offload, by name."""
        return {"": model} if isinstance(model, nn.Module) else model.components

    def __str__(self) -> str:
        return self.name


SHAPES: dict[str, Shape] = {}


def seeded(factory: Callable[[int], Any]) -> Callable[[int], Any]:
    """Calls `factory` with the seed, and with random numbers that come from it."""

    def build(seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return factory(seed)

    return build


def shape(
    name: str, calls: Mapping[str, Call], grow: Callable[[Any], Any] | None = None
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Registers a factory: what it makes gets weights and buffers from the seed."""

    def register(factory: Callable[[], Any]) -> Callable[[], Any]:
        SHAPES[name] = Shape(name, seeded(lambda _: factory()), calls, grow)
        return factory

    return register


def forward(*size: int) -> Call:
    """Calls the model with one tensor."""
    return lambda model, inputs: model(inputs.tensor(*size))


class Block(nn.Module):
    """Pre-norm residual: two linear layers and a scale of its own, read bare."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.down(F.gelu(self.up(self.norm(x))))


@shape(
    "T1",
    {
        "all blocks": forward(3, WIDTH),
        "without the optional layer": lambda model, inputs: model(inputs.tensor(3, WIDTH), optional=False),
        "one skipped": lambda model, inputs: model(inputs.tensor(3, WIDTH), skip={2}),
        "first and last skipped": lambda model, inputs: model(inputs.tensor(3, WIDTH), skip={0, 4}),
        "one twice": lambda model, inputs: model(inputs.tensor(3, WIDTH), order=[0, 1, 1, 2, 3, 4]),
        "reversed": lambda model, inputs: model(inputs.tensor(3, WIDTH), order=[4, 3, 2, 1, 0]),
        "through internals": lambda model, inputs: model.blocks[3](model.blocks[1](inputs.tensor(3, WIDTH))),
    },
)
class Stack(nn.Module):
    """Projections around a list of equal blocks, an affine norm at the root, and a layer that is not always used."""

    def __init__(self, blocks: int = 5, width: int = WIDTH) -> None:
        super().__init__()
        self.proj_in = nn.Linear(width, width)
        self.extra_norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width, elementwise_affine=True)
        self.proj_out = nn.Linear(width, width)

    def forward(
        self,
        x: torch.Tensor,
        *,
        optional: bool = True,
        skip: set[int] | None = None,
        order: list[int] | None = None,
    ) -> torch.Tensor:
        x = self.proj_in(x)
        if optional:
            x = self.extra_norm(x)
        for index in order or range(len(self.blocks)):
            if not skip or index not in skip:
                x = self.blocks[index](x)
        return self.proj_out(self.norm(x))


@shape("T2", {"interleaved": forward(3, WIDTH)})
class Interleaved(nn.Module):
    """Two lists whose elements take turns; neither runs in the order of declaration."""

    def __init__(self, blocks: int = 4) -> None:
        super().__init__()
        self.captions = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks))
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for caption, block in zip(reversed(self.captions), self.blocks, strict=True):
            x = block(x) + torch.tanh(caption(x))
        return x


class Coder(nn.Module):
    """A convolution, a list of residual convolutions, a convolution."""

    def __init__(self, channels_in: int, channels_out: int, width: int = 8) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(channels_in, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.conv_out = nn.Conv2d(width, channels_out, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.conv_out(x)


@shape(
    "T3",
    {
        "decode": lambda model, inputs: model.decode(inputs.tensor(1, 4, 6, 6)),
        "encode": lambda model, inputs: model.encode(inputs.tensor(1, 3, 6, 6)),
        "decode in tiles": lambda model, inputs: model.tiled_decode(inputs.tensor(1, 4, 8, 8)),
        "encode, then decode": lambda model, inputs: model.decode(model.encode(inputs.tensor(1, 3, 6, 6))),
    },
)
class Autoencoder(nn.Module):
    """Used by `encode` and `decode` only; the root is never called, and owns convolutions between the halves."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Coder(3, 4)
        self.decoder = Coder(4, 3)
        self.quant_conv = nn.Conv2d(4, 4, 1)
        self.post_quant_conv = nn.Conv2d(4, 4, 1)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant_conv(self.encoder(x))

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(z))

    def tiled_decode(self, z: torch.Tensor) -> torch.Tensor:
        rows = [torch.cat([self.decode(tile) for tile in row.chunk(2, -1)], -1) for row in z.chunk(2, -2)]
        return torch.cat(rows, -2)


@shape(
    "T4",
    {
        f"branch {branch}": lambda model, inputs, branch=branch: model(inputs.tensor(3, WIDTH), branch)
        for branch in (0, 2, 1, 1, 0)
    },
)
class Branches(nn.Module):
    """Three alternatives, one of them per call."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList([Block(), nn.Linear(WIDTH, WIDTH), nn.Sequential(Block(), nn.Tanh(), Block())])
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.head(self.branches[branch](self.stem(x)))


@shape("T5", {"forward": forward(3, WIDTH)})
class OnlyAList(nn.Module):
    """A root that owns nothing but one list of blocks."""

    def __init__(self, blocks: int = 4, width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


_operators = torch.library.Library("noria_shapes", "FRAGMENT")
_operators.define("scale(Tensor x, Tensor weight) -> Tensor")
# A kernel that takes the raw pointer of its weight, as hand-written norms do.
_operators.impl("scale", lambda x, weight: torch.from_numpy(x.detach().numpy() * weight.detach().numpy()), "CPU")


class RawScale(nn.Module):
    """A custom operator on a raw pointer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.noria_shapes.scale(x.detach(), self.weight.detach())


@shape(
    "T6",
    {
        "attention": lambda model, inputs: model.attend(inputs.tensor(2, 5, WIDTH)),
        "attention's fast path": lambda model, inputs: model.attend_fast(inputs.tensor(2, 5, WIDTH)),
        "weight norm": lambda model, inputs: model.normed(inputs.tensor(1, 4, 9)),
        "a child's weight": lambda model, inputs: model.functional(inputs.tensor(1, 4, 9)),
        "logits of an embedding": lambda model, inputs: model.logits(inputs.whole_numbers(11, 2, 5)),
        "a raw pointer": lambda model, inputs: model.scale(inputs.tensor(2, WIDTH)),
        "a transposed view kept": lambda model, inputs: inputs.tensor(2, 4) @ model.linear.weight.t()[:4],
    },
)
class DirectReads(nn.Module):
    """Weights read by others than their own module's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 24, batch_first=True).eval()
        self.normed = weight_norm(nn.Conv1d(4, 4, 3, padding=1))
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.embedding = nn.Embedding(11, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = RawScale()

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]

    def attend_fast(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.encoder(x)

    def functional(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv1d(x, self.conv.weight, self.conv.bias, padding=1)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.linear(self.linear(self.embedding(tokens)), self.embedding.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x)


@shape("T7", {"forward": lambda model, inputs: model(inputs.whole_numbers(11, 2, 5))})
class Tied(nn.Module):
    """One parameter under two modules, one module under two names, and two views of one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.again = self.blocks[0]
        self.left = nn.Linear(WIDTH, WIDTH, bias=False)
        self.right = nn.Linear(WIDTH, WIDTH, bias=False)
        halves = torch.randn(2, WIDTH, WIDTH) * 0.2
        self.left.weight = nn.Parameter(halves[0])
        self.right.weight = nn.Parameter(halves[1].t())
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.left(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.again(self.right(x)))


class Int8Weight(torch.Tensor):
    """A weight in eight bits with a scale per row: a wrapper over two inner tensors, with few operators of its own."""

    data8: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data8: torch.Tensor, scale: torch.Tensor) -> Int8Weight:
        return torch.Tensor._make_wrapper_subclass(cls, data8.shape, dtype=scale.dtype, device=data8.device)

    def __init__(self, data8: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8 = data8
        self.scale = scale

    @classmethod
    def quantize(cls, weight: torch.Tensor) -> Int8Weight:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def dequantize(self) -> torch.Tensor:
        return self.data8.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, torch.Tensor], _context: Any, _size: Any, _stride: Any
    ) -> Int8Weight:
        return cls(inner["data8"], inner["scale"])

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Int8Weight:
        return type(self)(change(self.data8), change(self.scale))

    pinnable = False

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            return args[0]._with(lambda inner: func(inner, **kwargs))
        if func is aten._has_compatible_shallow_copy_type.default:
            return False
        if func is aten._to_copy.default:
            if kwargs.get("dtype") not in (None, args[0].dtype):
                raise NotImplementedError("an eight-bit weight keeps its type")
            device = kwargs.get("device")
            return args[0]._with(lambda inner: inner.to(device, copy=True))
        if cls.pinnable and func in (aten.is_pinned.default, aten._pin_memory.default):
            pinned = [func(inner, **kwargs) for inner in (args[0].data8, args[0].scale)]
            return all(pinned) if func is aten.is_pinned.default else cls(*pinned)
        if func is aten.t.default:
            return args[0].dequantize().t()
        if func in (aten.mm.default, aten.addmm.default):
            return func(*(arg.dequantize() if isinstance(arg, Int8Weight) else arg for arg in args), **kwargs)
        raise NotImplementedError(f"{func} of an eight-bit weight")


class PinnableInt8Weight(Int8Weight):
    """The same, with support for page-locked memory."""

    pinnable = True


@shape("T8", {"forward": forward(3, WIDTH)})
class Quantized(nn.Module):
    """Layers whose weights are wrapper subclasses, beside ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        kinds = (Int8Weight, PinnableInt8Weight, Int8Weight)
        for layer, kind in zip(self.layers, kinds, strict=False):
            layer.weight = nn.Parameter(kind.quantize(layer.weight.detach()), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)


class Frequencies(nn.Module):
    """Only buffers, in several types, one of them complex."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (100 ** (torch.arange(WIDTH // 2) / WIDTH)))
        self.register_buffer("rotation", torch.polar(torch.ones(WIDTH), torch.randn(WIDTH)), persistent=False)
        self.register_buffer("offset", torch.tensor(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[0], device=x.device, dtype=x.dtype)[:, None] * self.inv_freq + self.offset
        return x * torch.cat([angles.cos(), angles.sin()], -1) + (x * self.rotation).real


@shape(
    "T9",
    {
        "forward": forward(4, WIDTH),
        "the table alone": lambda model, inputs: model.scale_shift_table * inputs.tensor(2, WIDTH),
        "evaluation": lambda model, inputs: _evaluate(model, inputs.tensor(4, WIDTH)),
    },
)
class Bare(nn.Module):
    """Parameters and buffers of the root itself, counters, running statistics, and tensors of odd kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.randn(2, WIDTH) * 0.3)
        self.register_tokens = nn.Parameter(torch.randn(1, WIDTH))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.nothing = nn.Parameter(torch.empty(0, WIDTH))
        self.low_precision = nn.Parameter(torch.randn(WIDTH).to(torch.bfloat16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("history", torch.zeros(3))
        self.register_buffer("absent", None)
        self.frequencies = Frequencies()
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.conv = nn.Conv2d(2, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift, scale = self.scale_shift_table.chunk(2)  # before any layer
        if self.training:
            self.calls += 1
            with torch.no_grad():
                self.history[self.calls % 3] = x.detach().mean()
        x = torch.cat([self.register_tokens, x * scale + shift, self.nothing])
        x = self.batch_norm(self.frequencies(x))
        x = x + self.conv(x.reshape(1, 1, -1, WIDTH).expand(1, 2, -1, WIDTH)).sum((0, 1))
        return self.linear(x) * self.temperature + self.low_precision + self.history.sum() + self.calls


def _evaluate(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.eval()
    try:
        return model(x)
    finally:
        model.train()


class Pipeline:
    """Components that are modules, and a scheduler that is not."""

    def __init__(self, **components: nn.Module) -> None:
        self.components = components
        self.sigmas = torch.linspace(1.0, 0.2, 3)

    def __getattr__(self, name: str) -> nn.Module:
        try:
            return self.__dict__["components"][name]
        except KeyError:
            raise AttributeError(name) from None


@shape(
    "T10",
    {
        "first": lambda pipe, inputs: pipe.transformer(inputs.tensor(3, WIDTH)),
        "second": lambda pipe, inputs: pipe.transformer_2(inputs.tensor(3, WIDTH)),
        "one after the other": lambda pipe, inputs: pipe.transformer_2(pipe.transformer(inputs.tensor(3, WIDTH))),
    },
)
def twins() -> Pipeline:
    """Two components whose inner names are the same and whose weights are not."""
    return Pipeline(transformer=Stack(2), transformer_2=Stack(2))


class LowRank(nn.Module):
    """What an adapter library puts in place of a layer."""

    def __init__(self, base_layer: nn.Module, seed: int, rank: int = 2) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        device = base_layer.weight.device
        self.base_layer = base_layer
        self.down = nn.Parameter(torch.randn(rank, WIDTH, generator=generator).to(device))
        self.up = nn.Parameter(torch.randn(WIDTH, rank, generator=generator).to(device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + x @ self.down.t() @ self.up.t()

    def merge(self, sign: int) -> None:
        with torch.no_grad():
            self.base_layer.weight += sign * (self.up @ self.down)


@shape(
    "T11",
    {
        "before": forward(3, WIDTH),
        "adapted": lambda model, inputs: model.adapt(inputs.tensor(3, WIDTH)),
        "adapted again": forward(3, WIDTH),
        "merged": lambda model, inputs: model.merge(inputs.tensor(3, WIDTH), 1),
        "unmerged": lambda model, inputs: model.merge(inputs.tensor(3, WIDTH), -1),
        "removed": lambda model, inputs: model.remove_adapters(inputs.tensor(3, WIDTH)),
        "after": forward(3, WIDTH),
    },
    grow=lambda model: model.adapt(torch.zeros(3, WIDTH)),
)
class Adaptable(nn.Module):
    """Layers replaced at run time by wrappers with a low-rank pair, which go away again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)

    def adapt(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            block[1] = LowRank(block[1], index)
        return self(x)

    def merge(self, x: torch.Tensor, sign: int) -> torch.Tensor:
        for block in self.blocks:
            block[1].merge(sign)
        return self(x)

    def remove_adapters(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            block[1] = block[1].base_layer
        return self(x)


@shape(
    "T12",
    {
        "three steps": lambda pipe, inputs: denoise(pipe, inputs),
        "text only": lambda pipe, inputs: pipe.text_encoder(inputs.whole_numbers(11, 1, 5)),
        "decode only": lambda pipe, inputs: pipe.vae.decode(inputs.tensor(1, 4, 4, 4)),
    },
)
def pipeline() -> Pipeline:
    """A text encoder, two denoisers that take turns, and an autoencoder."""
    return Pipeline(text_encoder=Tied(), expert=Stack(2), expert_2=Stack(3), vae=Autoencoder())


def denoise(pipe: Pipeline, inputs: Inputs) -> torch.Tensor:
    prompt = pipe.text_encoder(inputs.whole_numbers(11, 1, 5)).mean()
    latents = pipe.vae.encode(inputs.tensor(1, 3, 4, 4)).reshape(-1, WIDTH)
    for step, sigma in enumerate(pipe.sigmas):
        expert = pipe.expert if step % 2 == 0 else pipe.expert_2
        latents = latents - sigma.item() * expert(latents + prompt)
    return pipe.vae.decode(latents.reshape(1, 4, 4, 4))


class Interrupted(Exception):
    """What a module raises when a test says so."""


class RaisesOnce:
    """Inside this context the module raises after its forward has run."""

    def __init__(self, module: nn.Module, error: type[BaseException]) -> None:
        self.module = module
        self.error = error

    def __enter__(self) -> None:
        def strike(_module: nn.Module, _args: Any, _output: Any) -> None:
            raise self.error("as the test wants")

        self.handle = self.module.register_forward_hook(strike)

    def __exit__(self, *_error: object) -> None:
        self.handle.remove()


def flatten(value: Any) -> list[torch.Tensor]:
    """All tensors in a call's result, on the cpu."""
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in flatten(item)]
    return []


def assert_same_bits(actual: Any, expected: Any, what: str = "") -> None:
    """The same tensors, bit for bit."""
    got, wanted = flatten(actual), flatten(expected)
    assert len(got) == len(wanted), what
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert one.shape == other.shape and one.dtype == other.dtype, f"{what}: tensor {index}"
        if not torch.equal(one, other):
            difference = (one.float() - other.float()).abs().max().item()
            raise AssertionError(f"{what}: tensor {index} differs by up to {difference}")
