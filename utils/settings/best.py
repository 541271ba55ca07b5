"""The settings files of METHOD=best: the published recipe of each vendor, and the changes for others of its devices.

`config.<platform>-best.env` is the recipe for RECIPE_OF. `config.<platform>-best-<device>.env` holds what the vendor
publishes otherwise for another device. It changes keys of LAYOUT only, so that the work stays the same on every device,
and so that scripts can read all other keys without knowing the GPU.
"""

from __future__ import annotations

from pathlib import Path

from utils.errors import ConfigError

RECIPE_OF = {"nvd": ("H100", "H200"), "amd": ("MI300X",)}
"""Devices of the platform's recipe. NVIDIA publishes none for the H200, which has the chip of the H100."""
LAYOUT = ("MBS", "TP", "PP", "CP")
AUTO = "auto"


def overlays(platform: str, device: str | None, root: Path, *, is_asked: bool = False) -> list[str]:
    """Return the names of the files to read, the later ones over the earlier ones; empty without a recipe.

    `device` is a short name such as B200, None for an unknown GPU. A device without a recipe gets that of RECIPE_OF;
    `unfitting` says so. Raises ConfigError for such a device if a person named it (`is_asked`).
    """
    recipe = f"config.{platform}-best.env"
    if not (root / recipe).exists():
        return []
    known = devices(platform, root)
    if is_asked and device not in known:
        raise ConfigError(
            f"BEST_DEVICE={device}: no recipe for it on {platform}; there are {', '.join(known)}; or auto"
        )
    own = [f"config.{platform}-best-{device.lower()}.env"] if device else []
    return [recipe, *(name for name in own if (root / name).exists())]


def devices(platform: str, root: Path) -> list[str]:
    """Return the short names of the devices of a platform that a published recipe is for."""
    start = f"config.{platform}-best-"
    own = (path.name.removeprefix(start).removesuffix(".env").upper() for path in root.glob(f"{start}*.env"))
    return [*RECIPE_OF.get(platform, ()), *sorted(own)]


def unfitting(platform: str, device: str | None, root: Path) -> str | None:
    """Return a line if the recipe in use is that of another device; None if it is the device's own."""
    of = " and ".join(RECIPE_OF.get(platform, ()))
    if not of or device in devices(platform, root):
        return None
    if device is None or device == AUTO:
        return f"METHOD=best: no known GPU is visible here, so the recipe is that of {of}; name yours with BEST_DEVICE"
    return f"METHOD=best: no recipe for {device} is known to be published, so that of {of} is used"
