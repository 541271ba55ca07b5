"""Notes and certificate name differing settings by the rows of the settings map."""

from evaluate.fairness.certificate import LAYOUT, MEANS, MODEL, ONLY_IF_TRUE, WORK
from evaluate.report import notes
from tests.evaluate.test_compare import compared, save
from train.settings_map.map import ROWS
from utils.results.schema import SECTIONS


def test_a_difference_is_noted_under_the_name_of_its_row(tmp_path):
    save(tmp_path, framework="mega")
    save(tmp_path, framework="hf", resolved_config__norm_eps=1e-6)
    found = compared(tmp_path)["groups"][0]["notes"]
    assert (
        "resolved_config.norm_eps differs: 1e-06 (A cpu/hf); 1e-05 (B cpu/mega) (settings map: norm epsilon)" in found
    )


def test_a_fusion_that_only_one_of_two_results_has_is_noted(tmp_path):
    save(tmp_path, framework="mega", resolved_config__fused_ops={"apply_rope_fusion": True})
    save(tmp_path, framework="nemo", resolved_config__fused_ops={"apply_rope_fusion": False})
    (line,) = [note for note in compared(tmp_path)["groups"][0]["notes"] if "fused_ops" in note]
    assert line.startswith("resolved_config.fused_ops.apply_rope_fusion differs: ")


def test_licences_of_the_data_are_noted_once_and_only_where_one_is_known(tmp_path):
    save(tmp_path, framework="mega", fingerprint__licences={"dataset": "odc-by", "tokenizer": "llama3.1"})
    save(tmp_path, framework="hf", fingerprint__licences={"dataset": "odc-by", "tokenizer": None})
    assert "licences: dataset odc-by; tokenizer llama3.1" in compared(tmp_path)["groups"][0]["notes"]
    save(tmp_path / "own", framework="mega", fingerprint__licences={"dataset": None, "tokenizer": None})
    save(tmp_path / "own", framework="hf")
    assert not [note for note in compared(tmp_path / "own")["groups"][0]["notes"] if "licence" in note]


def with_energy(method, source):
    values = {"joules": 57.3, "avg_watts": 16.4, "joules_per_token": 0.001, "source": source, "interval": "7 steps"}
    return {"energy_metrics": values | ({"method": method} if method else {}) | {"reasons": {}}}


def test_energies_of_different_kinds_are_not_comparable(tmp_path):
    save(tmp_path, framework="mega", **with_energy("gpu_counter", "GPU counter, not the wall (NVML)"))
    save(tmp_path, framework="hf", **with_energy("gpu_power", "GPU power, integrated, not the wall (AMD SMI)"))
    (line,) = [note for note in compared(tmp_path)["groups"][0]["notes"] if "energy" in note]
    assert line.startswith("energy is not comparable: ")
    assert "GPU counter, not the wall (B cpu/mega)" in line and "GPU power, integrated, not the wall (A cpu/hf)" in line


def test_energies_of_one_kind_from_two_libraries_are_not_noted(tmp_path):
    save(tmp_path, framework="mega", **with_energy("gpu_counter", "GPU counter, not the wall (NVML)"))
    save(tmp_path, framework="hf", **with_energy("gpu_counter", "GPU counter, not the wall (AMD SMI)"))
    assert not [note for note in compared(tmp_path)["groups"][0]["notes"] if "energy" in note]


def test_notes_come_in_the_order_of_the_map():
    order = [row.resolved for row in ROWS if row.resolved in notes.MUST_MATCH["resolved_config"]]
    known = [key for key in notes.MUST_MATCH["resolved_config"] if key in order]
    assert known == list(dict.fromkeys(order))


def test_every_row_read_back_from_a_framework_is_a_key_of_the_result_and_an_item_of_the_certificate():
    keys = {row.resolved.partition(".")[0] for row in ROWS if row.resolved}
    assert keys - SECTIONS["resolved_config"].keys() - ONLY_IF_TRUE.keys() == set()
    items = {*MODEL, *WORK, *LAYOUT, *MEANS, *ONLY_IF_TRUE}
    assert keys - items - {"seed"} == set()
