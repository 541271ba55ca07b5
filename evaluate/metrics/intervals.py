"""The interval of a difference of two means with unequal variances and few values on each side.

Two approximations are known. Satterthwaite's (Biometrics Bulletin 2, 1946; Welch's t-test) covers the truth with equal
numbers of values, but in 85 to 93 % instead of 95 % when the side with fewer values varies more. Cochran's and Cox's
(Experimental Designs, 1950, section 4.14), a mean of both sides' own quantiles, covers there and is too wide with
equal numbers. The critical value here is a mean of the two: Satterthwaite's alone for equal degrees of freedom, and
almost Cochran's and Cox's alone if one side has far fewer. An exact integral gives its coverage for normal values:
93.9 to 98.5 % for 2 to 20 values a side and any two variances (tests/evaluate/metrics/test_intervals.py).

All functions take numbers or numpy arrays of equal shapes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = float | npt.NDArray[np.float64]
LEAST_LOG_P = -230.0
"""Natural logarithm of the least p-value, 1e-100."""
HALVINGS = 60
"""Steps of a bisection, which leave an error of 1e-16 in the logarithm of a p-value."""


def critical_value(level: Numbers, variances: tuple[Numbers, Numbers], degrees: tuple[Numbers, Numbers]) -> Any:
    """Return the smallest |difference| / sqrt(sum of variances) that is significant at `level`, two-sided.

    `variances` are those of the two means, not both 0; `degrees` are their degrees of freedom, 1 or more.
    """
    share = variances[0] / (variances[0] + variances[1])
    cochran = share * _quantile(degrees[0], level) + (1 - share) * _quantile(degrees[1], level)
    satterthwaite = _quantile(degrees_of_freedom(variances, degrees), level)
    # 0 for equal degrees of freedom, near 1 if one side has far fewer
    weight = 1 - np.minimum(*degrees) / np.maximum(*degrees)
    return weight * cochran + (1 - weight) * satterthwaite


def degrees_of_freedom(variances: tuple[Numbers, Numbers], degrees: tuple[Numbers, Numbers]) -> Any:
    """Return the degrees of freedom of the sum of two variances by Satterthwaite: 1 / sum(share^2 / degrees)."""
    share = variances[0] / (variances[0] + variances[1])
    return 1 / (share**2 / degrees[0] + (1 - share) ** 2 / degrees[1])


def p_value(difference: float, variances: tuple[float, float], degrees: tuple[float, float]) -> float:
    """Return the level at which a difference is just significant, 1e-100 or more; `variances` are not both 0."""
    statistic = abs(difference) / float(np.sqrt(sum(variances)))
    low, high = LEAST_LOG_P, 0.0
    # the critical value has no inverse in closed form, and falls with the level
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if critical_value(float(np.exp(middle)), variances, degrees) > statistic:
            low = middle
        else:
            high = middle
    return float(np.exp(high))


def half_interval(groups: Sequence[Sequence[float]], level: float) -> float:
    """Return half the interval, at `1 - level`, of the mean of one group or of the difference of the means of two
    (Satterthwaite); 0 if nothing varies. Each group has two values or more."""
    parts = [(statistics.variance(group) / len(group), len(group) - 1) for group in groups]
    variance = math.fsum(part for part, _ in parts)
    if not variance:
        return 0.0
    degrees = variance**2 / math.fsum(part**2 / freedom for part, freedom in parts)
    return float(_quantile(degrees, level)) * math.sqrt(variance)


def _quantile(degrees: Numbers, level: Numbers) -> Any:
    from scipy.special import stdtrit  # 0.2 s, which a comparison without a pair need not spend

    return -stdtrit(degrees, np.asarray(level) / 2)
