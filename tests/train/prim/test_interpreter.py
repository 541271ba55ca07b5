"""The Python that runs Primus in a container without a GPU: the image's own, if it can import what Primus imports."""

from tests.support.setups import Checkout


def test_in_a_container_the_images_python_runs_primus_and_one_without_its_packages_is_refused_in_one_line(tmp_path):
    checkout = Checkout(tmp_path, "prim")
    (checkout.root / "train").mkdir()
    own = checkout.add_python("python3", "3.12.3")
    image = {"TPRIMAT_IN_CONTAINER": "1", "PRIMUS_PATH": "/workspace/Primus"}
    done = checkout.run(**image)
    assert (done.returncode, done.stdout, checkout.installs()) == (0, f"{own}\n", [])
    assert "primus.backends.megatron" in checkout.calls_file.read_text(), "it imported Primus"
    lacking = checkout.run(**image, LACKS="loguru")
    assert (lacking.returncode, lacking.stdout) == (1, "")
    (line,) = lacking.stderr.splitlines()
    assert (
        line.startswith("error: prim: got torch ") and f"{own}, which lacks loguru; wanted all that Primus in" in line
    )
