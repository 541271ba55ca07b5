"""Settings that a process has resolved and hands on to the processes that it starts.

One environment variable holds the text and the origin of every setting. A process that finds it does not read the
settings files, so a file that is edited while a matrix runs changes nothing in it. Settings hold no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from utils.errors import ConfigError
from utils.settings.layers import Value

VARIABLE = "TPRIMAT_SETTINGS"


def variable(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the environment variable that hands `values` on, by its name."""
    return {VARIABLE: json.dumps({key: [value.text, value.origin] for key, value in values.items()})}


def received(environ: Mapping[str, str]) -> dict[str, Value] | None:
    """Return the settings that the parent process handed on, None where there are none.

    Raises ConfigError for a variable that `variable` did not write.
    """
    if VARIABLE not in environ:
        return None
    try:
        return {
            str(key): Value(str(text), str(origin)) for key, (text, origin) in json.loads(environ[VARIABLE]).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{VARIABLE}: cannot be read ({error}); unset it, only this suite sets it") from error
