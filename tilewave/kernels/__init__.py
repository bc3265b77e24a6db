"""Built-in kernels, written in tilewave's language.

They are called like functions and write their last arrays: `softmax(x, y)`. For the dtypes, the device and the row
length of a call, a function such as `softmax_kernel` makes the kernel.
"""

from typing import Any

import tilewave.call  # noqa: F401  gives kernels their `__call__`
from tilewave.kernels.activations import ACTIVATIONS as ACTIVATIONS
from tilewave.kernels.activations import Activation as Activation
from tilewave.kernels.activations import gelu as gelu
from tilewave.kernels.attentions import AttentionTile as AttentionTile
from tilewave.kernels.attentions import Heads as Heads
from tilewave.kernels.attentions import Scores as Scores
from tilewave.kernels.attentions import attention as attention
from tilewave.kernels.attentions import attention_kernel as attention_kernel
from tilewave.kernels.attentions import attention_tile_for as attention_tile_for
from tilewave.kernels.caches import kv_cache_write as kv_cache_write
from tilewave.kernels.caches import kv_cache_write_kernel as kv_cache_write_kernel
from tilewave.kernels.counts import bincount as bincount
from tilewave.kernels.counts import bincount_kernel as bincount_kernel
from tilewave.kernels.decode import attention_decode as attention_decode
from tilewave.kernels.decode import attention_rows_kernel as attention_rows_kernel
from tilewave.kernels.decode import attention_splits_kernel as attention_splits_kernel
from tilewave.kernels.decode import join_splits_kernel as join_splits_kernel
from tilewave.kernels.dropouts import dropout as dropout
from tilewave.kernels.dropouts import dropout_kernel as dropout_kernel
from tilewave.kernels.grouped import grouped_product as grouped_product
from tilewave.kernels.grouped import grouped_product_kernel as grouped_product_kernel
from tilewave.kernels.indexed import embedding as embedding
from tilewave.kernels.indexed import embedding_kernel as embedding_kernel
from tilewave.kernels.indexed import index_add as index_add
from tilewave.kernels.indexed import index_add_kernel as index_add_kernel
from tilewave.kernels.losses import cross_entropy as cross_entropy
from tilewave.kernels.losses import cross_entropy_kernel as cross_entropy_kernel
from tilewave.kernels.norms import layer_norm as layer_norm
from tilewave.kernels.norms import layer_norm_kernel as layer_norm_kernel
from tilewave.kernels.norms import rms_norm as rms_norm
from tilewave.kernels.norms import rms_norm_kernel as rms_norm_kernel
from tilewave.kernels.products import Floats as Floats
from tilewave.kernels.products import GemmKernel as GemmKernel
from tilewave.kernels.products import accumulator as accumulator
from tilewave.kernels.products import error_bound as error_bound
from tilewave.kernels.products import gemm as gemm
from tilewave.kernels.products import gemm_bias_gelu as gemm_bias_gelu
from tilewave.kernels.ragged import csr_matmul as csr_matmul
from tilewave.kernels.ragged import permute_rows as permute_rows
from tilewave.kernels.ragged import permute_rows_kernel as permute_rows_kernel
from tilewave.kernels.ragged import segment_sum as segment_sum
from tilewave.kernels.ragged import segment_sum_kernel as segment_sum_kernel
from tilewave.kernels.ragged import unpermute_rows as unpermute_rows
from tilewave.kernels.ragged import unpermute_rows_kernel as unpermute_rows_kernel
from tilewave.kernels.rows import Rows as Rows
from tilewave.kernels.rows import kernel_for as kernel_for
from tilewave.kernels.rows import rows_for as rows_for
from tilewave.kernels.softmaxes import log_softmax as log_softmax
from tilewave.kernels.softmaxes import log_softmax_kernel as log_softmax_kernel
from tilewave.kernels.softmaxes import masked_softmax as masked_softmax
from tilewave.kernels.softmaxes import masked_softmax_kernel as masked_softmax_kernel
from tilewave.kernels.softmaxes import softmax as softmax
from tilewave.kernels.softmaxes import softmax_kernel as softmax_kernel
from tilewave.kernels.sums import argmax as argmax
from tilewave.kernels.sums import argmax_kernel as argmax_kernel
from tilewave.kernels.sums import cumsum as cumsum
from tilewave.kernels.sums import cumsum_kernel as cumsum_kernel
from tilewave.kernels.sums import running_rows as running_rows
from tilewave.kernels.sums import sum_
from tilewave.kernels.sums import sum_kernel as sum_kernel
from tilewave.renamed import KERNELS, current_name

sum = sum_


def __getattr__(name: str) -> Any:
    """Return a kernel under the name that it had before."""
    if name not in KERNELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[current_name(__name__, name, KERNELS[name])]
