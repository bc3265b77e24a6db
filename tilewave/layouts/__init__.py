"""Layouts: which lane and register has which element, as mathematics, independent of kernels."""
