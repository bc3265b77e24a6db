"""f16 for CPUs without an instruction for it: the two conversion functions that LLVM calls, as IR text."""

from __future__ import annotations

SOFT_HALF = """
define weak_odr hidden float @__extendhfsf2(half %x) nounwind {
  %h = bitcast half %x to i16
  %w = zext i16 %h to i32
  %s = and i32 %w, 32768
  %sign = shl i32 %s, 16
  %size = and i32 %w, 32767
  %moved = shl i32 %size, 13
  %small = bitcast i32 %moved to float
  %scaled = fmul float %small, 0x46F0000000000000
  %bits = bitcast float %scaled to i32
  %special = icmp uge i32 %size, 31744
  %infinite = or i32 %bits, 2139095040
  %found = select i1 %special, i32 %infinite, i32 %bits
  %signed = or i32 %found, %sign
  %y = bitcast i32 %signed to float
  ret float %y
}

define weak_odr hidden half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %sign = and i32 %bits, -2147483648
  %size = xor i32 %bits, %sign
  %f = bitcast i32 %size to float
  %shifted = fadd float %f, 5.000000e-01
  %shifted_bits = bitcast float %shifted to i32
  %tiny = sub i32 %shifted_bits, 1056964608
  %lowest = lshr i32 %size, 13
  %odd = and i32 %lowest, 1
  %up = add i32 %size, -939520001
  %rounded = add i32 %up, %odd
  %normal = lshr i32 %rounded, 13
  %is_tiny = icmp ult i32 %size, 947912704
  %finite = select i1 %is_tiny, i32 %tiny, i32 %normal
  %is_large = icmp uge i32 %size, 1199566848
  %large = select i1 %is_large, i32 31744, i32 %finite
  %is_nan = icmp ugt i32 %size, 2139095040
  %found = select i1 %is_nan, i32 32256, i32 %large
  %sign16 = lshr i32 %sign, 16
  %signed = or i32 %found, %sign16
  %h = trunc i32 %signed to i16
  %y = bitcast i16 %h to half
  ret half %y
}

@llvm.compiler.used = appending global [2 x ptr] [ptr @__extendhfsf2, ptr @__truncsfhf2], section "llvm.metadata"
"""
