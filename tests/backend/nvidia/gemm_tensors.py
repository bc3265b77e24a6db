"""Tensors of a GEMM as a torch without a GPU holds them."""

M, N, K = 256, 512, 128


def tensors(torch, at=(0x10000, 0x40000, 0x90000), a_strides=(K, 1)):
    shapes, strides = ((M, K), (N, K), (M, N)), (a_strides, (K, 1), (N, 1))
    return [
        torch.Tensor(*given, dtype="torch.float16", strides=s) for *given, s in zip(at, shapes, strides, strict=True)
    ]
