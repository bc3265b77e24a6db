"""The door to torch: kernels as operators of torch's, and models whose layers are ours.

Importing this imports torch; nothing else of tilewave does.
"""

from tilewave.torch.op import TorchOperator as TorchOperator
from tilewave.torch.op import op as op
