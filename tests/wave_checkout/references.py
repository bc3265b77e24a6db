"""What Wave's tests compare with: its reference compiler's products and convolutions, in torch, in float64.

Wave's own are computed on the same GPU by the same instructions, and some tests want equal bits of them. What is not
computed so may differ by roundings: by those of sums in f32, or, where scores are rounded between two products, by a
unit of their last place.
"""

from __future__ import annotations

from typing import Any

import torch

IN_SUMS, IN_SCORES = 1e-4, 5e-2
least = [0.0]
"""The least tolerance of the current test."""
compare = torch.testing.assert_close


def assert_close(found: Any, wanted: Any, **how: Any) -> None:
    """Compare as the test does, but with no tolerance below that of its reference."""
    if least[0]:
        how["rtol"], how["atol"] = (max(how.get(name) or 0.0, least[0]) for name in ("rtol", "atol"))
    compare(found, wanted, **how)


def generate(kind: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], options: Any, **more: Any) -> None:
    """Fill the only output with the result of a kind of computation, in float64."""
    (out,) = outputs
    least[0] = IN_SCORES if kind.startswith("chain") else IN_SUMS
    rounded = torch.float8_e4m3fnuz if kind.endswith("_f8") else None
    x = [(t.to(rounded) if rounded else t).double() for t in inputs]
    match kind.removesuffix("_f8"):
        case "mmt" | "bmmt":
            found = x[0] @ x[1].mT
        case "chain_mmt":  # (k · qᵀ)ᵀ · vᵀ, with the scores rounded as they are stored between the products
            scores = (x[0] @ x[1].mT).to(rounded or inputs[0].dtype).double()
            found = scores @ x[2].mT
        case "conv_2d_nchw_fchw":
            found = torch.conv2d(x[0], x[1], stride=more["stride"])
        case "conv_2d_nhwc_hwcf":
            made = torch.conv2d(x[0].permute(0, 3, 1, 2), x[1].permute(3, 2, 0, 1), stride=more["stride"])
            found = made.permute(0, 2, 3, 1)
        case _:
            raise NotImplementedError(f"no reference for {kind}")
    out.copy_(found.to(out.dtype))
