"""Stand-in of docker, podman and apptainer, whichever it is told: as strict about arguments, and as careless.

It knows the options that these engines have (docker 28, podman 4.3, apptainer 1.3) and refuses all others. A container
is a process in a session of its own, which outlives its client as a real one does (apptainer's is a child to which it
hands on signals); its name is a file in STANDIN_STATE.
In place of the image's command it runs STANDIN_JOB with the environment of the container. STANDIN_LOG gets a line of
JSON for each; STANDIN_IMAGES names the images, STANDIN_FAULTS `<engine>:<fault>`. See tests/support/setups.py.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ENGINE, *ARGUMENTS = sys.argv[1:]
STATE = Path(os.environ["STANDIN_STATE"])
RUN_VALUES = {
    *("--name", "--hostname", "--workdir", "--user", "--device", "--group-add", "--security-opt", "--cap-add", "--ipc"),
    *("--shm-size", "--ulimit", "--mount", "--env", "--network", "--entrypoint", "--memory", "--label"),
}
VALUES = {
    "docker": RUN_VALUES | {"--gpus"},
    "podman": RUN_VALUES | {"--userns"},
    "apptainer": {"--no-mount", "--home", "--pwd", "--mount", "--bind"},
}
RUN_FLAGS = {"--rm", "--init", "--interactive", "--tty", "--sig-proxy"}
FLAGS = {"docker": RUN_FLAGS, "podman": RUN_FLAGS, "apptainer": {"--cleanenv", "--pid", "--nv", "--rocm"}}


def fail(message: str, code: int = 125) -> None:
    """End as an engine does that does not start anything."""
    print(f"{ENGINE}: {message}", file=sys.stderr)
    raise SystemExit(code)


def parsed(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options with their values, and the image with its command."""
    options: list[tuple[str, str]] = []
    words = list(arguments)
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in FLAGS[ENGINE]:
            options.append((name, value if equals else "true"))
        elif name in VALUES[ENGINE] and (equals or words):
            options.append((name, value if equals else words.pop(0)))
        else:
            fail(f"unknown flag: {name}")
    return options, words


def mounts(options: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the bind mounts; a source that is missing is an error, as with --mount of the real ones."""
    found = []
    for text in (value for name, value in options if name == "--mount"):
        (fields,) = csv.reader([text])
        mount = dict(field.split("=", 1) if "=" in field else (field, "true") for field in fields)
        if mount.keys() - {"type", "source", "target", "ro"} or mount["type"] != "bind":
            fail(f"invalid mount {text!r}")
        if not Path(mount["source"]).exists():
            fail(f"bind source path does not exist: {mount['source']}")
        found.append(mount)
    targets = [mount["target"] for mount in found]
    if len(set(targets)) < len(targets):
        fail(f"Duplicate mount point: {targets}")
    return found


def environment(options: list[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that the container gets: names stand for the client's own."""
    if ENGINE == "apptainer":
        return {name[13:]: value for name, value in os.environ.items() if name.startswith("APPTAINERENV_")}
    given = {}
    for name, equals, value in (text.partition("=") for option, text in options if option == "--env"):
        if equals or name in os.environ:
            given[name] = value if equals else os.environ[name]
    return given


def run(arguments: list[str]) -> int:
    """Run a container to its end and return its exit code."""
    options, (image, *command) = parsed(arguments)
    given = dict(options)
    # the image of apptainer is a file
    if not (Path(image).is_file() if ENGINE == "apptainer" else image in os.environ.get("STANDIN_IMAGES", "").split()):
        fail(f"no such image: {image}")
    if given.get("--entrypoint") == "/bin/true" or command == ["/bin/true"]:
        if f"{ENGINE}:no-start" in os.environ.get("STANDIN_FAULTS", "").split():
            hint = "Run 'docker run --help' for more information"
            fail(f"Error: OCI runtime error: crun: operation not permitted\n\n{hint}", 126)
        return 0
    started = {"engine": ENGINE, "argv": ARGUMENTS, "options": options, "image": image, "command": command}
    started |= {"mounts": mounts(options), "environment": environment(options)}
    started["private"] = [
        [str(path), [oct(place.stat().st_mode) for place in (path.parent, path)], path.read_text()]
        for path in (Path(one["source"]) for one in started["mounts"])
        if path.name == "environment"
    ]
    with Path(os.environ["STANDIN_LOG"]).open("a") as log:
        log.write(json.dumps(started) + "\n")
    environ = {"PATH": os.environ["PATH"], "STANDIN_OUT": os.environ.get("STANDIN_OUT", ""), **started["environment"]}
    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def hand_on(number: int, _: object) -> None:
        for process in processes:
            process.send_signal(number)
        if not processes:
            early.append(number)

    if ENGINE == "apptainer":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, hand_on)
    processes.append(
        process := subprocess.Popen(
            ["bash", "-c", os.environ.get("STANDIN_JOB", "exit 0")],
            env=environ,
            stdin=None if "--interactive" in given or ENGINE == "apptainer" else subprocess.DEVNULL,
            start_new_session=ENGINE != "apptainer",
            preexec_fn=lambda: prepare(given.get("--name")),
        )
    )
    for number in early:
        process.send_signal(number)
    code = process.wait()
    if ENGINE != "apptainer" and "--rm" in given:
        (STATE / given["--name"]).unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def prepare(name: str | None) -> None:
    """In the process that becomes the container: it can be found by its name before it does anything."""
    if name is not None:
        (STATE / name).write_text(str(os.getpid()))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def running(name: str) -> int:
    """Return the process group of a container, or end where there is none."""
    try:
        group = int((STATE / name).read_text())
        os.killpg(group, 0)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        fail(f"No such container: {name}", 1)
    return group


def stop(name: str, seconds: float) -> None:
    """TERM, then KILL."""
    group = running(name)
    os.killpg(group, signal.SIGTERM)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
    (STATE / name).unlink(missing_ok=True)


def answer(arguments: list[str]) -> int:
    """Do what is asked, and return the exit code."""
    match arguments:
        case ["run", *rest] if ENGINE != "apptainer":
            return run(rest)
        case ["exec", *rest] if ENGINE == "apptainer":
            return run(rest)
        case ["kill", "--signal", number, name]:
            os.killpg(running(name), signal.Signals[f"SIG{number}"])
        case ["stop", "-t", seconds, name]:
            stop(name, float(seconds))
        case ["rm", "--force", name]:
            os.killpg(running(name), signal.SIGKILL)
            (STATE / name).unlink()
        case _:
            fail(f"unknown command: {arguments}")
    return 0


if __name__ == "__main__":
    sys.exit(answer(ARGUMENTS))
