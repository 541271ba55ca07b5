"""shell/inside/setup_image.sh with stand-ins for all programs: nothing of this machine is changed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("platform", ["nvd", "amd", "cpu"])
def test_what_the_base_image_pins_for_its_own_python_does_not_bind_the_environment(
    tmp_path: Path, platform: str
) -> None:
    """NVIDIA's PyTorch images set PIP_CONSTRAINT; pip would refuse the pins of the requirement files."""
    for name in ("inside/setup_image.sh", "lib/environment.sh", "lib/install.sh", "platform.sh"):
        (tmp_path / "shell" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "shell" / name, tmp_path / "shell" / name)
    (tmp_path / "shell" / "setup.sh").write_text(
        '#!/bin/bash\necho "${PIP_CONSTRAINT-none} $PIP_INDEX_URL"\n', encoding="utf8"
    )
    (tmp_path / "shell" / "setup.sh").chmod(0o755)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "readlink", "cat"):
        (programs / name).symlink_to(str(shutil.which(name)))
    for name in ("rm", "mkdir", "python3", "apt-get"):
        (programs / name).write_text("#!/bin/bash\n", encoding="utf8")
        (programs / name).chmod(0o755)
    environment = {"PATH": str(programs), "PLATFORM": platform, "TPRIMAT_VENV": str(tmp_path / "venv")}
    environment |= {"PIP_CONSTRAINT": "/etc/pip/constraint.txt", "PIP_INDEX_URL": "kept"}
    command = [str(tmp_path / "shell" / "inside" / "setup_image.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "none kept\n"), done.stderr
