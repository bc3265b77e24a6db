"""Which lane holds which element, as mathematics: it knows nothing of kernels."""
