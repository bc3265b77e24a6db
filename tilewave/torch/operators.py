"""`tilewave.ops` on torch tensors: operators with gradients, known to `torch.compile`, `torch.export` and autocast.

Each is one torch operator, with the function of `tilewave.ops` that runs it, the shape and dtype of its results, and a
backward pass made of such operators. Calls outside compilers, modes and profilers skip torch's dispatcher.
"""

from tilewave.torch.attention_operators import attention as attention
from tilewave.torch.dropout_operators import dropout as dropout
from tilewave.torch.expert_operators import counting_sort as counting_sort
from tilewave.torch.expert_operators import moe as moe
from tilewave.torch.gated_operators import gated as gated
from tilewave.torch.grouped_operators import grouped_mm as grouped_mm
from tilewave.torch.indexed_operators import bincount as bincount
from tilewave.torch.indexed_operators import cross_entropy as cross_entropy
from tilewave.torch.indexed_operators import embedding as embedding
from tilewave.torch.indexed_operators import index_add as index_add
from tilewave.torch.indexed_operators import index_select as index_select
from tilewave.torch.product_operators import linear as linear
from tilewave.torch.product_operators import matmul as matmul
from tilewave.torch.row_operators import cumsum as cumsum
from tilewave.torch.row_operators import layer_norm as layer_norm
from tilewave.torch.row_operators import rms_norm as rms_norm
from tilewave.torch.row_operators import softmax as softmax
from tilewave.torch.selection_operators import argmax as argmax
from tilewave.torch.selection_operators import topk as topk
from tilewave.torch.tensors import LIBRARY as LIBRARY
from tilewave.torch.tensors import want_tensors as want_tensors
