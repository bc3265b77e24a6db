"""tilewave in torch: kernels as torch operators, and models whose layers run as tilewave kernels.

Importing this imports torch; nothing else of tilewave does.
"""

from tilewave.torch.op import TorchOperator as TorchOperator
from tilewave.torch.op import op as op
from tilewave.torch.patching import Layer as Layer
from tilewave.torch.patching import PatchReport as PatchReport
from tilewave.torch.patching import patch as patch
from tilewave.torch.patching import unpatch as unpatch
