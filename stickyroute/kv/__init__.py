"""What a model needs of a GPU's memory: KV cache bytes for a token, weights, and how many tokens and users fit.

`config` reads a Hugging Face config.json (`fields`, `layers` and `weights` are its parts), `sizes` does the
arithmetic. Knows nothing of running engines; their own figures, where there are any, are better.
"""

from stickyroute.kv.config import Model, read_model
from stickyroute.kv.layers import Attention
from stickyroute.kv.sizes import Fit, fit

__all__ = ["Attention", "Fit", "Model", "fit", "read_model"]
