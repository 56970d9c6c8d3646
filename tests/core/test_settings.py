"""Tests of `palaestra.core.settings`: what types say of settings."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from palaestra.core import (
    AboveOne,
    Annealed,
    AtLeastOne,
    ConfigError,
    Duration,
    Finite,
    Fraction,
    InsideFraction,
    Limit,
    Linear,
    NotNegative,
    Positive,
    Range,
    Schedule,
    require_ranges,
)


@dataclass
class Settings:
    """A setting of every kind."""

    count: AtLeastOne[int | None] = None
    rate: Positive[Schedule] = 1.0
    clip: Annealed[Schedule] = 0.2
    share: Fraction[float] = 0.5
    inside: InsideFraction[float] = 0.5
    wait_s: Duration[float] = 0.0
    limit: Limit[float] = 1.0
    cost: NotNegative[float] = 0.0
    ratio: AboveOne[float | None] = None
    bias: Finite[float] = 0.0
    port: Annotated[int, Range(ge=0, le=65535, note=", as ports do")] = 0
    kind: Literal["a", "b"] | None = None
    sizes: tuple[int, ...] | None = ()
    plain: Schedule = 0.5


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({"count": 0}, "x.count is 0; it must be at least 1"),
        ({"count": 1.0}, "x.count is 1.0; it must be a whole number of at least 1"),
        ({"count": True}, "x.count is True; it must be a whole number of at least 1"),
        ({"rate": Linear(1.0, 0.0)}, r"x.rate is Linear.*; it must be greater than 0"),
        ({"rate": "fast"}, "x.rate is 'fast'; it must be a number$"),
        ({"plain": "linear(1, 0)"}, r"x.plain is 'linear\(1, 0\)'; it must be a number, or an object"),
        ({"plain": math.nan}, "x.plain is nan; it must be finite"),
        ({"sizes": 64}, r"x.sizes is 64; it must be a list, such as \[64\]"),
        ({"sizes": "64"}, r"x.sizes is '64'; it must be a list, such as \['64'\]"),
        ({"rate": math.inf}, "x.rate is inf; it must be finite"),
        ({"clip": Linear(0.0, 0.0)}, "it must be greater than 0, where a schedule may end at 0"),
        ({"share": math.nan}, r"x.share is nan; it must lie in \[0, 1\]"),
        ({"inside": 1.0}, "x.inside is 1.0; it must be above 0 and below 1"),
        ({"wait_s": -1}, "x.wait_s is -1; it must be at least 0"),
        ({"limit": 0}, "x.limit is 0; it must be greater than 0"),
        ({"ratio": 1.0}, "x.ratio is 1.0; it must be greater than 1"),
        ({"bias": -math.inf}, "x.bias is -inf; it must be finite"),
        ({"port": 65536}, r"x.port is 65536; it must lie in \[0, 65535\], as ports do"),
        ({"kind": "c"}, "x.kind is 'c'; it must be a or b"),
        ({"count": 0, "kind": "c"}, "count is 0.*\n.*kind is 'c'"),
    ],
)
def test_a_setting_that_is_not_what_its_type_says_is_refused(given, needed):
    with pytest.raises(ConfigError, match=needed):
        require_ranges(Settings(**given), "x.")


def test_settings_in_their_ranges_pass():
    given = Settings(
        count=np.int64(3), clip=Linear(0.2, 0.0), wait_s=math.inf, limit=math.inf, kind="b", ratio=1.5, sizes=[64]
    )
    require_ranges(given, "x.")


def test_what_does_not_fit_together_is_looked_at_where_each_setting_is_right():
    """No condition meets a text where a number is compared."""
    with pytest.raises(ConfigError, match="too much"):
        require_ranges(Settings(), "x.", ["too much"])
    given: Any = Settings(count="many")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="whole number"):
        require_ranges(given, "x.", ("too many" for limit in (3,) if given.count > limit))
