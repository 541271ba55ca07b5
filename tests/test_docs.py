"""The README and docs/ name only files and sections that exist, and their commands run in a copy of the checkout.

A block of commands that does not run here is named below with the reason. What trains, downloads, builds or deletes
runs with `--dry-run`, which reads all of its arguments.
"""

import json
import os
import re
import shutil
import subprocess

import pytest
from checkout import ROOT, copy_checkout, environment_of_user

from tests.support import bundles, documents, made_traces, sides

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "examples" / "README.md"])
ROOMS = ("utils", "data", "train", "evaluate", "benchmarks", "tests", "shell")

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"python3? -m ([\w.]+)")
_PATH = re.compile(rf"(?<![\w/.<>-])(?:\./)?((?:{'|'.join(ROOMS)})/[\w./-]*\.(?:py|sh|json|md|env|txt)|docs/[\w/.-]+)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_commands_and_paths_of_a_page_exist(page):
    text = page.read_text(encoding="utf8")
    for name, anchor in ((name, anchor) for name, _, anchor in (link.partition("#") for link in _LINK.findall(text))):
        if "://" not in name:
            target = page.parent / name if name else page
            assert target.exists(), name
            assert not anchor or anchor in anchors(target.read_text(encoding="utf8")), f"{name}#{anchor}"
    modules = [name for name in _MODULE.findall(text) if name.partition(".")[0] in ROOMS]
    files = {name: [ROOT / f"{name.replace('.', '/')}{end}" for end in (".py", "/__main__.py")] for name in modules}
    assert [name for name, paths in files.items() if not any(path.is_file() for path in paths)] == []
    assert [name for name in _PATH.findall(text) if not (ROOT / name.rstrip("/.")).exists()] == []
    assert not re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE), "no conflict of a merge is left"


def test_the_readme_is_short_enough_to_be_read_and_leads_to_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf8")
    assert len(text.splitlines()) <= 100
    names = [page.name for page in PAGES if page.parent == ROOT / "docs"]
    assert [name for name in names if f"(docs/{name})" not in text] == []


def test_the_gallery_refuses_a_changed_archive_and_marks_one_that_somebody_has_reproduced(tmp_path):
    for name, label, seconds in (("mine", "", 1.0), ("theirs", "reproduced-mine", 1.01)):
        folder = bundles.written(tmp_path / name, bundles.sides({"nvd": seconds}, runs=3, label=label))
        bundles.pack(folder).rename(tmp_path / f"{name}.zip")
    mine, theirs = documents.gallery(tmp_path).splitlines()[2:]
    assert "| 3 | 2026-11-21 |" in mine and "[by another](theirs.zip)" in mine and "not yet" in theirs

    def change(files):
        with bundles.edited(files, "train_nvd_mega_llama_run1.json") as result:
            result["step_times"][50] /= 2

    bundles.packed_again(tmp_path / "mine.zip", change, is_listed=True)
    with pytest.raises(ValueError, match="mine.zip: train_nvd_mega_llama_run1.json"):
        documents.gallery(tmp_path)


def test_the_report_on_the_first_gpu_is_that_of_todays_compare(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    documents.write_first_report(tmp_path, "--format", "md")
    kept = (documents.FIRST_REPORT / "compare.md").read_text(encoding="utf8")
    assert (tmp_path / "compare.md").read_text(encoding="utf8") == kept, "run python -m tests.support.documents"
    texts = [path.read_text(encoding="utf8") for path in documents.FIRST_REPORT.glob("compare.[hjm]*")]
    assert len(texts) == 3 and not any(str(ROOT) in text for text in texts)


# Blocks of commands.

TOLD = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
IS_COMMAND = re.compile(r"^ *(?:\$ )?(?:\./|\.venv/|python|[A-Z_]+=\S* \./)", re.MULTILINE)
DRY = re.compile(r"(\./tprimat (?:train|data|sweep|slurm|build|reproduce|purge|gpu-hour)\b)")
NOT_HERE = {  # the beginning of a block: the reason, and the test that runs such a command
    "git clone": "needs the network",
    "./tprimat setup": "installs for minutes, and runs this test: tests/fresh",
    "./tprimat probe --platform nvd": "needs a GPU: tests/train/test_probe.py",
    "./tprimat reproduce": "needs a machine of the archive's platform: tests/shell/test_reproduce.py",
    "./tprimat profile": "trains: tests/shell/test_scripts.py",
    "./tprimat status": "needs a matrix that runs: tests/train/runner",
    "./tprimat train DATASET=c4 MODEL=llama FRAMEWORK=prim": "needs Primus: tests/train/prim",
    "./tprimat train DATASET=/path": "names files of the reader: tests/data/test_prepare.py",
    "./shell/data.sh": "trains: tests/shell/test_comparison.py",
    "./tprimat enter": "needs a container: tests/shell/test_container.py",
    "./tprimat build PLATFORM=amd": "needs docker and apptainer: tests/shell/test_build.py",
    ".venv/bin/python -m benchmarks.texts": "needs a checkout of Megatron-LM: tests/benchmarks",
}


def blocks():
    """Return (page:line, language, text) of each fenced block."""
    for page in TOLD:
        text = page.read_text(encoding="utf8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}", found[2], found[3].replace("\\\n", " ")


BLOCKS = list(blocks())
COMMANDS = {place: text for place, language, text in BLOCKS if language == "bash"}
LEFT_OUT = {place: start for place, text in COMMANDS.items() for start in NOT_HERE if text.lstrip().startswith(start)}


def test_blocks_of_commands_are_marked_and_every_exception_is_needed():
    assert [place for place, language, text in BLOCKS if not language and IS_COMMAND.search(text)] == []
    assert NOT_HERE.keys() - set(LEFT_OUT.values()) == set()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a copy of the checkout with the files that the pages name: results, archives, traces, days, a log."""
    folder = copy_checkout(tmp_path_factory.mktemp("documented") / "clone")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name, seconds in {"output": {"nvd": 1.0, "amd": 0.9}, "amd": {"amd": 0.9}, "nvd": {"nvd": 1.0}}.items():
        results = bundles.sides(seconds, runs=3)
        bundles.written(folder / name, results)
        for result in results[::3]:
            made_traces.write_profile(folder / name, result)
    for name in ("amd", "nvd"):
        bundles.pack(folder / name).rename(folder / f"{name}.zip")
    for name in ("new", "reference"):
        (folder / f"{name}.zip").hardlink_to(folder / "nvd.zip")
    for name in ("trace", "nvidia", "amd"):
        made_traces.made_trace(folder / f"{name}.json.gz")
    sides.write_days(folder, 6)
    (folder / "nightly").mkdir()
    for path in folder.glob("day*"):
        path.rename(folder / "nightly" / path.name.replace("day", "2026-11-"))
    (folder / "logs" / "llama").mkdir(parents=True)
    shutil.copy(ROOT / "tests/utils/logs/samples/megatron_new.log", folder / "train.log")
    shutil.copy(ROOT / "tests/utils/logs/samples/primus_a.log", folder / "logs" / "llama")
    return folder


@pytest.mark.full("every block of commands of the pages, about 2 min")
@pytest.mark.parametrize("place", sorted(COMMANDS.keys() - LEFT_OUT.keys()))
def test_a_block_runs_as_it_stands(place, clone):
    script = DRY.sub(r"\1 --dry-run", COMMANDS[place]).replace("./tprimat build", "RUNTIME=auto ./tprimat build")
    environment = os.environ | {"RUNTIME": "native", "PLATFORM": "cpu"}
    done = subprocess.run(["bash", "-euc", script], cwd=clone, env=environment, capture_output=True, text=True)
    # 3: the command worked, and the made-up results have no pair, or no figure, to answer with
    assert done.returncode in (0, 3), f"{script}\n{done.stdout}\n{done.stderr}"


@pytest.mark.full("the packages that reading needs are installed, about 30 s")
def test_two_archives_are_compared_on_a_third_machine_in_a_clone_without_an_environment(tmp_path):
    """The README's walkthrough. It installs the packages that reading needs, as a user's first comparison does."""
    clone, desk = copy_checkout(tmp_path / "a clone"), tmp_path / "desk"
    environment = environment_of_user(tmp_path / "home")
    desk.mkdir()
    for platform, seconds in {"nvd": 1.0, "amd": 0.9}.items():
        output = bundles.written(tmp_path / platform, bundles.sides({platform: seconds}, runs=3))
        bundles.pack(output).rename(desk / f"{platform}.zip")

    def start(script, *arguments):
        return subprocess.run([script, *arguments], cwd=desk, env=environment, capture_output=True, text=True)

    done = start(clone / "shell" / "compare.sh", "amd.zip", "nvd.zip", "--output", "report")
    assert done.returncode == 0 and done.stdout.startswith("faster: AMD Instinct MI300X is 1.1"), done.stderr
    (verdict,) = json.loads((desk / "report" / "compare.json").read_text())["verdicts"]
    assert (verdict["verdict"], round(verdict["ratio"], 2)) == ("faster", 1.11)  # 1.0 s a step beside 0.9 s
    packages = next((clone / ".venv-evaluate" / "lib").glob("python3*/site-packages"))
    assert not (clone / ".venv").exists() and not (packages / "torch").exists()
    assert sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) < 400e6
    for name, arguments in {"validate": "--bundle amd.zip", "compare": "nvd.zip amd.zip --output again"}.items():
        (desk / name).symlink_to(clone / "shell" / f"{name}.sh")
        again = start(desk / name, *arguments.split())
        assert again.returncode == 0 and "making" not in again.stderr, again.stderr
