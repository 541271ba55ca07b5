"""The launcher that a checkout of Primus has, on folders with the files of each generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.prim import install, yaml_config
from train.prim.launcher import launcher_of, printed_variable
from utils.errors import ConfigError

EXPERIMENT, LOG = Path("/logs/job.yaml"), Path("/logs/job.primus.log")


@pytest.fixture
def checkout(tmp_path):
    """Return what makes a checkout with these files."""

    def make(*names):
        for name in ("primus/configs/.keep", *names):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return make


def test_a_checkout_with_run_pretrain_is_started_by_it_and_gets_its_files_from_the_environment(checkout):
    launcher = launcher_of(checkout("examples/run_pretrain.sh", "primus-cli"))
    assert launcher.command(EXPERIMENT, LOG) == ["bash", "examples/run_pretrain.sh"]
    assert launcher.variables(EXPERIMENT, LOG, "MI300X") == {"EXP": str(EXPERIMENT), "TRAIN_LOG": str(LOG)}


def test_a_checkout_without_run_pretrain_is_started_by_primus_cli_direct(checkout):
    root = checkout("primus-cli", "runner/.primus.yaml")
    command = launcher_of(root).command(EXPERIMENT, LOG)
    assert command[:3] == ["bash", "primus-cli", "direct"]
    before, after = command[3 : command.index("--")], command[command.index("--") + 1 :]
    # not ~/.primus.yaml of whoever starts it
    assert before == ["--config", str(root / "runner/.primus.yaml"), "--log_file", str(LOG)]
    assert after == ["train", "pretrain", "--config", str(EXPERIMENT)]


def test_the_launcher_is_told_the_model_of_the_gpu(checkout):
    assert launcher_of(checkout("primus-cli")).variables(EXPERIMENT, LOG, "MI355X") == {"PRIMUS_GPU_MODEL": "MI355X"}


def test_a_folder_without_a_launcher_or_without_presets_is_no_primus(tmp_path, checkout):
    (tmp_path / "primus-cli").touch()
    with pytest.raises(ConfigError, match=r"no Primus there \(examples/run_pretrain.sh or primus-cli"):
        install.at(tmp_path)
    root = checkout()
    (root / "primus-cli").unlink()
    with pytest.raises(ConfigError, match="no Primus there"):
        install.at(root)


def test_a_gpu_without_an_environment_file_stops_the_job_where_the_launcher_would_only_warn(checkout):
    root = checkout("primus-cli", "runner/helpers/envs/MI300X.sh", "runner/helpers/envs/MI355X.sh")
    primus = install.at(root)
    yaml_config._check_gpu(primus, "MI355X")
    with pytest.raises(ConfigError, match=r"no runner/helpers/envs/MI350X.sh.*MI300X, MI355X.*PRIMUS_GPU_MODEL=MI355X"):
        yaml_config._check_gpu(primus, "MI350X")


def test_the_older_launcher_needs_no_environment_file(checkout):
    yaml_config._check_gpu(install.at(checkout("examples/run_pretrain.sh")), "MI350X")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[NODE-0(n1)] [INFO] NCCL_SOCKET_IFNAME: eth0", ("NCCL_SOCKET_IFNAME", "eth0")),
        ("[NODE-0(n1)] [INFO] NCCL_DEBUG: ", None),
        # of primus-cli, with its colours and time
        ("\x1b[34m[2026-11-22 12:45:36] [NODE-0(n1)] [INFO]\x1b[0m     NCCL_CROSS_NIC=0", ("NCCL_CROSS_NIC", "0")),
        ("\x1b[34m[NODE-0(n1)] [INFO]\x1b[0m     NCCL_PXN_DISABLE=1", ("NCCL_PXN_DISABLE", "1")),
        ("\x1b[34m[NODE-0(n1)] [INFO]\x1b[0m     NCCL_ALGO=<unset>", None),
        (
            "[NODE-0(n1)] [INFO] [Hooks] exported env from hook: TE_HIPBLASLT_TUNING_RUN_COUNT=0",
            ("TE_HIPBLASLT_TUNING_RUN_COUNT", "0"),
        ),
        ("[NODE-0(n1)] [INFO] [direct] Loaded config: /x", None),
        ("[NODE-0(n1)] [INFO] ========== RCCL Settings ==========", None),
    ],
)
def test_variables_that_a_launcher_prints_are_read(line, found):
    assert printed_variable(f"{line}\n") == found
