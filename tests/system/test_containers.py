"""Real containers, started by Podman, and a secret in secrets.env: a whole run in the CPU image, and all three images.

`amd` and `nvd` are built on stand-ins (podman_engine.py). There is no GPU, so the jobs inside are those of a CPU, with
the Python, the packages and the variables of the image. The facts of the GPUs are put into the results afterwards
(tests/support/image_variables.py). One file for all, because one worker then makes each image once.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import image_variables
import podman_engine
import psutil
import pytest
from bundles import write_run
from checkout import ROOT
from packaging.requirements import Requirement
from podman_engine import ANYBODY, run_script

from tests.support import real_primus
from tests.support.launching import results
from train.settings_map.map import decided
from utils.housekeeping import footprint
from utils.provenance.origin import speed_variables

ROAD = ("MODEL=llama", "RUNS=1", "TRAIN_ITERS=6", "WARMUP_ITERS=1", "GBS=16", "MBS=4", "SL=64")


pytestmark = pytest.mark.full("real containers of Podman: all images and training in them, about 1500 s")


def command_lines() -> set[str]:
    """Return the arguments of all other processes of the machine."""
    others = (process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid())
    return {"\0".join(process.info["cmdline"] or ()) for process in others}


@contextmanager
def watched_processes() -> Iterator[set[str]]:
    """Collect the arguments of all processes of the machine, about thirty times a second, during the block."""
    seen, is_over = set(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.03):
            seen.update(command_lines())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


@pytest.fixture(scope="module")
def road(podman, checkout, built, tmp_path_factory):
    """Run data, training and archive in containers; return the output folder, the output, and all arguments seen."""
    built("cpu")
    folder = tmp_path_factory.mktemp("road")
    folders = (f"OUTPUT_DIR={folder}/output", f"DATA_DIR={folder}/data")
    printed = ""
    with watched_processes() as arguments:
        for name, extra in (("run_data.sh", ROAD), ("run_train.sh", ROAD), ("run_wrap.sh", ())):
            done = run_script(podman, checkout, name, *folders, *extra)
            assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-5000:]}"
            printed += done.stdout + done.stderr
    return folder / "output", printed, arguments


def test_the_whole_road_in_containers_gives_valid_results_that_name_the_image(podman, built, road):
    output, _, _ = road
    found = results(output)
    assert [path.name for path in found] == ["train_cpu_hf_llama_run1.json", "train_cpu_mega_llama_run1.json"]
    for result in found.values():
        image = "{image} {image_digest}\n".format_map(result["provenance"])
        assert (result["status"], image) == ("ok", built("cpu").stdout)
    assert zipfile.is_zipfile(output / "output.zip")
    assert podman.containers() == []


def test_the_token_reaches_the_container_and_the_exit_code_is_the_jobs(podman, checkout, built, token):
    built("cpu")
    done = run_script(podman, checkout, "entry.sh", "--", "bash", "-c", 'printf %s "$HF_TOKEN" | sha256sum; exit 41')
    assert done.returncode == 41 and done.stdout.split()[0] == sha256(token.encode()).hexdigest(), done.stderr


def test_the_token_is_nowhere_after_the_road(podman, token, road):
    output, printed, arguments = road
    assert any("train_mega" in line for line in arguments), "the trainers were seen"
    assert any("run\0--rm" in line for line in arguments), "the engine was seen"
    assert not [line for line in (*arguments, printed) if token in line]
    contents = {path: path.read_bytes() for path in output.parent.rglob("*") if path.is_file()}
    with zipfile.ZipFile(output / "output.zip") as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert len(contents) > 10 and len(packed) > 3
    assert not [where for where, content in (contents | packed).items() if token.encode() in content]
    kept = subprocess.run(["grep", "-rlaF", "-e", token, podman.folder / "run", podman.folder / "engine"])
    assert kept.returncode == 1, "the engine keeps it"


def test_an_ordinary_user_without_a_daemon_gets_files_of_his_own(users_podman, checkout, road):
    """With the user's own Podman, which runs without root."""
    folder = users_podman.folder
    shutil.copytree(checkout, folder / "code", ignore=shutil.ignore_patterns(".git", "secrets.env"))
    output = folder / "home" / "output"
    shutil.copytree(road[0], output)
    (output / "output.zip").unlink()
    for path in (output, *output.rglob("*")):
        os.chown(path, podman_engine.USER, podman_engine.USER)
    done = run_script(users_podman, folder / "code", "run_wrap.sh", f"OUTPUT_DIR={output}")
    assert done.returncode == 0, done.stderr
    made = (output / "output.zip").stat()
    assert (made.st_uid, made.st_gid) == (podman_engine.USER, podman_engine.USER)
    assert users_podman.containers() == []


def test_a_signal_in_the_middle_of_training_leaves_no_container_and_no_process(
    podman, checkout, built, token, tmp_path
):
    """SIGTERM; of the others see tests/shell/test_engines.py."""
    built("cpu")
    output, log = tmp_path / "output", tmp_path / "log"
    settings = [f"OUTPUT_DIR={output}", f"DATA_DIR={tmp_path / 'data'}", "FRAMEWORK=mega", *ROAD, "TRAIN_ITERS=3000"]
    command = podman.wrapped(checkout / "shell" / "run_train.sh", "PLATFORM=cpu", *settings)
    environment = {**podman.environment, "RUNTIME": "podman"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 600
        while not re.search(r"  step \d+/3000", printed := log.read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < deadline, printed[-5000:]
            time.sleep(0.2)
        (container,) = podman.containers()
        assert token not in podman.ask("container", "inspect", container), "a running container shows no secret"
        assert [line for line in command_lines() if str(output) in line]
        process.terminate()
        code = process.wait(600)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            podman.run("podman", "rm", "--all", "--force")
    assert code == 128 + signal.SIGTERM, log.read_text()[-5000:]
    assert podman.containers() == []
    assert not [line for line in command_lines() if str(output) in line]


# The three images, built by build.sh, and training in those of both vendors up to the verdict that they are for.

IN_IMAGE = "/workspace/code"
each_platform = pytest.mark.parametrize("platform", podman_engine.PLATFORMS)
each_vendor = pytest.mark.parametrize("platform", podman_engine.CLAIMS)
LIST_PACKAGES = """
import importlib.metadata as m, json, re
found = reversed(list(m.distributions()))  # what is found first counts: the base has other versions of some packages
print(json.dumps({re.sub("[-_.]+", "-", d.name).lower(): d.version for d in found}))
"""
ASK_TORCH = "import json, numpy, torch; print(json.dumps([torch.__file__, numpy.__file__, torch.version.{claim}]))"
ASK_ANYBODY = """
import getpass, os, pathlib, tempfile
import megatron.core, transformers, accelerate, datasets, matplotlib.pyplot
from torch._inductor.runtime.runtime_utils import cache_dir
pathlib.Path.home().joinpath("mine").write_text("x")
print(os.getuid(), getpass.getuser(), cache_dir().startswith(tempfile.gettempdir()))
"""
CPU = "localhost/tprimat:cpu"
TAKE_FOR_CPU = """
FROM {image}
RUN ["bash", "-c", "source shell/lib/environment.sh && PLATFORM=cpu wanted_stamp runtime >$VENV/.stamp-runtime"]
"""
"""The environment has the packages of a CPU's, by the same pins; its stamp names the platform as well."""
SHORT = ("MODEL=llama", "RUNS=1", "TRAIN_ITERS=20", "WARMUP_ITERS=1", "GBS=16", "MBS=4", "SL=64", "PRECISION=bf16")
SECONDS = {"amd": 0.8, "nvd": 1.0}


def git(checkout, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True).stdout


def in_image(podman, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    return podman.ask("run", "--rm", "--network", "none", *options, image, *command)


def python(podman, image: str, program: str, options: tuple[str, ...] = ()) -> str:
    return in_image(podman, image, "/opt/tprimat/venv/bin/python", "-c", program, options=options)


@each_platform
def test_build_prints_the_id_of_the_image_and_labels_say_where_it_comes_from(podman, checkout, built, platform):
    image = built(platform)
    (described,) = json.loads(podman.ask("image", "inspect", image.image))
    assert image.stdout == f"localhost/tprimat:{platform} sha256:{described['Id']}\n"
    (base,) = json.loads(podman.ask("image", "inspect", podman_engine.base_name(platform)))
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in described["Labels"].items()}
    assert re.sub("-dirty$", "", labels["revision"]) == git(checkout, "rev-parse", "HEAD").strip()
    assert labels["base.name"] == podman_engine.base_name(platform)
    assert labels["base.digest"] in (base["Digest"], *(d.split("@")[1] for d in base["RepoDigests"]))
    assert in_image(podman, image.image, "pwd") == IN_IMAGE, "without words of the base"


@each_platform
def test_every_pinned_package_is_in_the_image_at_its_version(podman, built, platform):
    installed = json.loads(python(podman, built(platform).image, LIST_PACKAGES))
    text = "".join((ROOT / f"{name}-requirements.txt").read_text() for name in (platform, "energy"))
    pins = [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    of_image = {"python_version": "3.11" if platform == "cpu" else "3.12"}
    wanted = {str(pin): pin for pin in pins if pin.marker is None or pin.marker.evaluate(of_image)}
    assert len(wanted) > 15
    for line, pin in wanted.items():
        version = installed[re.sub("[-_.]+", "-", pin.name).lower()]
        assert pin.specifier.contains(version, prereleases=True), f"{line}: the image has {version}"


@each_vendor
def test_pytorch_and_numpy_of_the_base_stay(podman, built, platform):
    claim, version = podman_engine.CLAIMS[platform]
    torch, numpy, found = json.loads(python(podman, built(platform).image, ASK_TORCH.format(claim=claim)))
    assert torch.startswith(f"{podman_engine.PACKAGES[platform]}/torch/")
    assert numpy.startswith(f"{podman_engine.PACKAGES[platform]}/numpy/")
    assert found == version
    inside = in_image(podman, built(platform).image, "ls", "/opt/tprimat/venv/lib/python3.12/site-packages").split()
    assert "orjson" in inside, "a package that no base has"
    assert not {"torch", "numpy"} & set(inside), "a second one was installed"


def test_the_environment_finds_the_engine_of_the_base_before_that_of_the_image_below(podman, built):
    """NeMo's images keep TransformerEngine in a virtual environment that a second one does not see by itself."""
    found = python(podman, built("nvd").image, f"import {podman_engine.ENGINE} as engine; print(engine.__file__)")
    assert found.strip() == f"{podman_engine.BASE_PACKAGES}/{podman_engine.ENGINE}/__init__.py"


def test_amd_takes_the_tools_of_rocm_from_the_path_of_its_base(podman, built):
    image = built("amd")
    found = in_image(podman, image.image, "bash", "-c", "type -P rocprofv3")
    assert found.startswith(f"{podman_engine.BASE_PACKAGES}/")
    assert "rocprofiler-sdk" not in image.stderr
    groups = in_image(podman, image.image, "getent", "group", "video", "render").splitlines()
    assert [group.split(":")[0] for group in groups] == ["video", "render"], "the run scripts name them"


@each_platform
def test_anybody_may_use_the_image_also_for_data_sets_of_the_hub(podman, built, platform):
    said = python(podman, built(platform).image, ASK_ANYBODY, options=("--user", ANYBODY))
    assert said.splitlines()[-1] == "12345 tprimat True"


def test_the_image_holds_what_git_tracks_and_nothing_else_of_the_checkout(podman, checkout, built):
    listed = git(checkout, "ls-files").split()
    tracked = {name for name in listed if not name.startswith((".ci/", ".github/", "output/", ".dockerignore"))}
    held = in_image(podman, built("cpu").image, "find", IN_IMAGE, "!", "-type", "d").splitlines()
    assert {name.removeprefix(f"{IN_IMAGE}/") for name in held} == tracked


def layers(podman, image: str) -> set[str]:
    """Return the folders of all layers; the storage driver vfs, which has copies instead, names none."""
    found = json.loads(podman.ask("image", "inspect", "--format", "{{json .GraphDriver.Data}}", image)) or {}
    return set(":".join(found[name] for name in ("LowerDir", "UpperDir") if name in found).split(":"))


@each_platform
def test_the_token_and_lent_settings_are_in_no_image(podman, built, token, platform):
    """In no layer over the base image, also not in a file that a later layer removes, and not in the configuration."""
    image = built(platform).image
    assert token not in podman.ask("image", "inspect", image) + podman.ask("history", "--no-trunc", image)
    own = layers(podman, image) - layers(podman, podman_engine.base_name(platform))
    if not own:
        pytest.skip("the storage driver does not keep the layers of an image apart")
    assert subprocess.run(["grep", "-rqaF", "-e", "def written_whole", *own]).returncode == 0, "our files are there"
    assert subprocess.run(["grep", "-rlaF", "-e", token, "-e", f"lent-{platform}", *own]).returncode == 1


@contextmanager
def on_a_cpu(podman, image: str) -> Iterator[None]:
    """Have the commands for a CPU run in a vendor's image."""
    earlier = podman.run("podman", "image", "inspect", "--format", "{{.Id}}", CPU)
    containerfile = podman.folder / "tmp" / "Containerfile"
    containerfile.write_text(TAKE_FOR_CPU.format(image=image), encoding="utf8")
    podman.ask("build", "--quiet", "--tag", CPU, "--file", containerfile, podman.folder / "tmp")
    try:
        yield
    finally:
        podman.ask("untag", CPU)
        if earlier.returncode == 0:
            podman.ask("tag", earlier.stdout.strip(), CPU)


@pytest.fixture(scope="module")
def train(podman, checkout, built, tmp_path_factory):
    """Return what prepares data and trains in a vendor's image, once, as a user that no image knows."""
    if not real_primus.TREES.is_dir():
        pytest.skip(str(real_primus.why_not()))
    return functools.cache(functools.partial(_trained, podman, checkout, built, tmp_path_factory))


def _trained(podman, checkout, built, tmp_path_factory, platform):
    """Return the result of each framework, the log of Primus (empty without one), and what the commands printed."""
    image = built(platform).image
    folder = tmp_path_factory.mktemp(platform)
    paths = {name: folder / name for name in ("output", "data", "cache")}
    for path in paths.values():
        path.mkdir()
        os.chown(path, *map(int, ANYBODY.split(":")))
    frameworks = image_variables.FRAMEWORKS[platform]
    settings = (
        f"OUTPUT_DIR={paths['output']}",
        f"DATA_DIR={paths['data']}",
        f"FRAMEWORK={','.join(frameworks)}",
        *SHORT,
    )
    as_user = {"CONTAINER_ARGS": f"--user {ANYBODY}", "HF_HOME": str(paths["cache"])}
    printed = ""
    with on_a_cpu(podman, image):
        for name in ("run_data.sh", "run_train.sh"):
            done = run_script(podman, checkout, name, *settings, **as_user)
            printed += done.stdout + done.stderr
            assert done.returncode == 0, f"{name}: {printed[-9000:]}"
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in folder.rglob("*")}
    assert owners == {tuple(map(int, ANYBODY.split(":")))}, "all that is written is the caller's"
    found = {result["framework"]: result for result in results(paths["output"]).values()}
    log = "".join(path.read_text(errors="replace") for path in (paths["output"] / "logs").glob("*.primus.log"))
    return found, log, printed


@each_vendor
def test_every_framework_of_the_vendor_trains_in_its_image_as_an_ordinary_user(train, platform):
    found, _, printed = train(platform)
    assert found.keys() == set(image_variables.FRAMEWORKS[platform])
    assert {result["status"] for result in found.values()} == {"ok"}, printed[-5000:]


@each_vendor
def test_the_variables_of_the_image_that_change_speed_are_recorded_and_stay(train, platform):
    found, _, _ = train(platform)
    of_image = speed_variables(image_variables.variables(platform))
    for name, result in found.items():
        wanted = {key: value for key, value in of_image.items() if key not in decided(name)}
        assert result["provenance"]["environment"].items() >= wanted.items(), name


@pytest.fixture(scope="module")
def verdicts(train, podman, checkout, tmp_path_factory):
    """Return the verdicts of the third checkout on the packed results of both images, told as those of their GPUs."""
    archives = []
    for platform, seconds in SECONDS.items():
        trained, log_of_primus, _ = train(platform)
        folder = tmp_path_factory.mktemp("told") / platform
        footprint.mark(folder, footprint.OUTPUT)
        for result in trained.values():
            for number in range(1, 6):
                told = image_variables.told_of(platform, result, number, seconds)
                log = write_run(folder, told)
                if told["framework"] == "prim":
                    log.with_suffix(".primus.log").write_text(image_variables.log_told_of(told, log_of_primus))
        done = run_script(podman, checkout, "run_wrap.sh", f"OUTPUT_DIR={folder}", RUNTIME="auto")
        assert done.returncode == 0, done.stderr
        archives.append(shutil.copy(folder / "output.zip", folder.parent / f"{platform}.zip"))
    report = tmp_path_factory.mktemp("report")
    command = [sys.executable, "-m", "evaluate.compare", *archives, "--output", report]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    found = json.loads((report / "compare.json").read_text(encoding="utf8"))["verdicts"]
    return {(one["framework"]): one for one in found}


def test_both_images_end_in_a_verdict_on_every_pair(verdicts):
    assert set(verdicts) == {"mega", "hf", "bridge and prim"}
    times_faster = SECONDS["nvd"] / SECONDS["amd"]
    for name, one in verdicts.items():
        assert one["is_decided"] and one["verdict"] == "faster" and one["unproven"] == [], f"{name}: {one}"
        assert one["ratio"] == pytest.approx(times_faster, rel=0.005), f"{name}: {one}"
