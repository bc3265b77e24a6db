"""What Wave's tests compare with: its reference compiler's products and convolutions, in torch, in float64.

Wave's own are computed on the same GPU by the same instructions, and some tests want equal bits of them. A result
here is compared with the exact one, and may differ by what sums of so many terms in f32 round, or, where scores are
rounded between two products, by that too. The bound follows from the operands and their dtypes, for each element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

compare = torch.testing.assert_close


def unit(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


def of_sums(terms: int) -> float:
    """Return the relative error of a sum of so many terms in f32, in any order, of the sum of their magnitudes."""
    error = (terms + 1) * unit(torch.float32)
    return error / (1 - error)


@dataclass
class Exact:
    """A reference in float64, the tensor that the test got of it, and how far a result may be from it."""

    values: torch.Tensor
    given: torch.Tensor
    bound: torch.Tensor

    def is_meant_by(self, wanted: Any) -> bool:
        """Return whether a test compares with this reference, in whichever dtype."""
        same = isinstance(wanted, torch.Tensor) and wanted.shape == self.given.shape
        return same and torch.equal(wanted, self.given.to(wanted.dtype))

    def compare(self, found: torch.Tensor) -> None:
        narrow = found.dtype.is_floating_point and found.dtype.itemsize < 4
        rounding = unit(found.dtype) * (self.values.abs() + self.bound) + 2.0**-24 if narrow else 0.0
        off = (found.double() - self.values).abs() - self.bound - rounding
        assert bool((off <= 0).all()), f"off by {float(off.nan_to_num(torch.inf).max()):.3g} more than its bound"


current: list[Exact] = []
"""The references of the current test."""


def assert_close(found: Any, wanted: Any, **how: Any) -> None:
    """Compare with the exact reference, within its bound, where the test compares with one; else as the test does."""
    exact = next((one for one in current if one.is_meant_by(wanted)), None)
    if exact is not None:
        exact.compare(found)
    else:
        compare(found, wanted, **how)


def generate(kind: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], options: Any, **more: Any) -> None:
    """Fill the only output with the result of a kind of computation, in float64."""
    (out,) = outputs
    rounded = torch.float8_e4m3fnuz if kind.endswith("_f8") else None
    x = [(t.to(rounded) if rounded else t).double() for t in inputs]
    values = computed(kind.removesuffix("_f8"), x, more)
    magnitude = computed(kind.removesuffix("_f8"), [t.abs() for t in x], more)
    bound = of_sums(_terms(kind, x)) * magnitude
    if kind.startswith("chain"):  # scores are rounded as they are stored between the products
        bound = 2 * bound + of_scores(x, rounded or inputs[0].dtype)
    out.copy_(values.to(out.dtype))
    current.append(Exact(values, out.clone(), bound))


def computed(kind: str, x: list[torch.Tensor], more: Any) -> torch.Tensor:
    """Return the result of a kind of computation on float64."""
    match kind:
        case "mmt" | "bmmt":
            return x[0] @ x[1].mT
        case "chain_mmt":  # ((q · kᵀ) · vᵀ)ᵀ
            return ((x[0] @ x[1].mT) @ x[2].mT).mT
        case "conv_2d_nchw_fchw":
            return torch.conv2d(x[0], x[1], stride=more["stride"])
        case "conv_2d_nhwc_hwcf":
            made = torch.conv2d(x[0].permute(0, 3, 1, 2), x[1].permute(3, 2, 0, 1), stride=more["stride"])
            return made.permute(0, 2, 3, 1)
    raise NotImplementedError(f"no reference for {kind}")


def of_scores(x: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return what the rounding of each score to a dtype adds to the error."""
    least = torch.finfo(dtype).smallest_normal
    return (unit(dtype) * ((x[0] @ x[1].mT).abs() + least) @ x[2].abs().mT).mT


def _terms(kind: str, x: list[torch.Tensor]) -> int:
    """Return the terms of each sum; of two products, of both."""
    if kind.startswith("chain"):
        return int(x[0].shape[-1] + x[1].shape[-2])
    return int(x[1].shape[-1]) if "mmt" in kind else int(x[1].numel())
