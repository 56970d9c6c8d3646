"""Shape annotations: `jaxtyping`'s names where it is loaded, plain `Annotated` everywhere else.

`jaxtyping` is a tool of the tests: its pytest plugin loads it, and then the shapes below can be checked. In a training
run it is neither needed nor imported. A type checker always reads `Float[Tensor, "T1 B"]` as `Tensor`.

Letters as in the docs: T time, B lanes, N rows, A actions or action dimensions. `T1` stands for T + 1 time steps, so
`[T1-1, B]` is what belongs to the T of them that have a successor; `n1` stands for the n + 1 rows of a window.
"""

import sys
from typing import TYPE_CHECKING

if not TYPE_CHECKING and sys.modules.get("jaxtyping"):
    from jaxtyping import Bool, Float, Int, Integer, Num, Shaped
else:
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Int
    from typing import Annotated as Integer
    from typing import Annotated as Num
    from typing import Annotated as Shaped

__all__ = ["Bool", "Float", "Int", "Integer", "Num", "Shaped"]
