"""What Wave's tests compare with: its reference compiler's products and convolutions, in torch."""

from __future__ import annotations

from typing import Any

import torch


def generate(kind: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], options: Any, **more: Any) -> None:
    """Fill the only output with the result of a kind of computation, in float64."""
    (out,) = outputs
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
