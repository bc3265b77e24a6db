"""The functions of Wave's templates that make kernels, and calls of those that none of Wave's tests reach on a CPU."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import references
import torch

TEMPLATES = "wave_lang/kernel/wave/templates"
NO_KERNEL = ("paged_decode_attention.get_paged_decode_intermediate_arrays_shapes",)


def names(checkout: Path) -> list[str]:
    """Return `module.function` of every template."""
    found = []
    for file in sorted((checkout / TEMPLATES).glob("*.py")):
        made = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
        found += [f"{file.stem}.{name}" for name in made if name.startswith("get_")]
    return [name for name in found if name not in NO_KERNEL]


def run_alone(name: str) -> None:
    """Call a template's kernel with arrays of this file, and compare the results with float64."""
    module, _, function = name.partition(".")
    made = getattr(import_module(f"{TEMPLATES.replace('/', '.')}.{module}"), function)
    ALONE[name](made)


def compiled(kernel: Any, sizes: Any) -> Callable[..., None]:
    from stand_in import CompiledInTest, tilewave

    return CompiledInTest(tilewave.WaveCompileOptions(subs=sizes), kernel)


def checked_product(call: Callable[..., None], m: int, n: int, k: int) -> None:
    a, b = (torch.randn(rows, k, dtype=torch.float16) for rows in (m, n))
    c, reference = torch.full((m, n), torch.nan), torch.empty(m, n)
    call(a, b, c)
    references.generate("mmt", [a, b], [reference], None)
    references.current[-1].compare(c)


def moe_gemm(made: Any) -> None:
    from wave_lang.kernel.wave.constraints import MMAType

    import tilewave

    checked_product(compiled(*made(70, 96, 130, MMAType.F32_16x16x16_F16, tilewave.f16)), 70, 130, 96)


def one_device(made: Any) -> None:
    from wave_lang.kernel.wave.constraints import MMAType

    kernel, sizes, _ = made((130, 70, 96), False, MMAType.F32_16x16x16_F16)
    checked_product(compiled(kernel, sizes), 130, 70, 96)


def scaled(made: Any) -> None:
    """Compare products of numbers of four bits, two to a byte, whose scales belong to 32 neighbours each."""
    from wave_lang.kernel.wave.constraints import ScaledMMAType

    m, n, k = 70, 40, 512
    halves = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    given, exact = [], []
    for rows in (m, n):
        x = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
        scale = torch.randint(120, 134, (rows, k // 32), dtype=torch.uint8)
        given += [x, scale]
        numbers = halves[torch.stack([x & 15, x >> 4], -1).flatten(1).long()]
        exact.append(numbers * torch.exp2(scale.double() - 127).repeat_interleave(32, 1))
    c, reference = torch.full((m, n), torch.nan), torch.empty(m, n)
    compiled(*made((m, n, k), ScaledMMAType.F32_16x16x128_F8F6F4))(*given, c)
    references.generate("mmt", exact, [reference], None)
    references.current[-1].compare(c)


def silu(made: Any) -> None:
    """Compare with the template's own formula, -1 / (-1 + 2^-x) · x · y, which is no SiLU."""
    import tilewave

    x, y = torch.rand(5, 300, dtype=torch.float16) + 1, torch.randn(5, 300, dtype=torch.float16)
    out = torch.full((5, 300), torch.nan, dtype=torch.float16)
    compiled(*made(5, 300, tilewave.f16))(x, y, out)
    power = torch.exp2(-x.double())
    wanted = -1 / (power - 1) * x.double() * y.double()
    # 2^-x, the sum, the quotient and two products are rounded, the first two before a difference of at least a half
    bound = 8 * references.unit(torch.float16) * wanted.abs() + 2.0**-20
    assert bool(((out.double() - wanted).abs() <= bound).all())


def scaled_add(made: Any) -> None:
    a, b = torch.randn(10, 150, dtype=torch.float16), torch.randn(10, dtype=torch.float16)
    c = torch.full((10, 150), torch.nan, dtype=torch.float16)
    compiled(*made((10, 300)))(a, b, c)
    assert torch.equal(c, a + b[:, None])


ALONE: dict[str, Callable[[Any], None]] = {
    "dist_gemm.get_dist_gemm_kernel": one_device,
    "gemm.get_scaled_gemm_kernel": scaled,
    "moe.get_gemm_kernel": moe_gemm,
    "moe.get_silu_and_mul_kernel": silu,
    "test_kernels.get_broadcast_scaled_add": scaled_add,
}
