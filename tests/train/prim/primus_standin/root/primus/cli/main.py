"""The training of a stand-in for Primus: takes a YAML as strictly, prints lines of the same forms, trains nothing.

Nothing of Primus is here. The folder is a small launcher of ours behind the same doors, so that `train/train_prim.py`
can be driven whole on a machine without a GPU and without AMD's framework. In common with Primus v25.10:

- the folders and files that are looked for: `examples/run_pretrain.sh`, `examples/megatron/configs/<GPU>/*.yaml`,
  `primus/configs/{modules,models}/megatron/*.yaml` with `extends`; conftest.py writes those of each model;
- the names of the keys in these files (names only, values are ours; source: the preset files of release v25.10), and
  that an unknown key in `overrides` ends the run;
- the variables EXP, TRAIN_LOG, GPUS_PER_NODE, MASTER_PORT, and the exit code of what it started;
- the forms of the lines: the table of arguments, the vocabulary, the number of parameters, memory, and iterations as
  three generations print them. They are in `lines.txt`, made after real logs, and not in any code.

Times and losses are made up by a rule. One thing is real: the data set, built by megatron-core as Primus's trainer
builds it (`blend_per_split`), because the order of the samples is compared with ours.

STANDIN_LINES names a generation of lines.txt (default v25.10). STANDIN_FAULT is one of: `exit:CODE:STEP`,
`killed:STEP`, `oom:STEP`, `nan:STEP` (each after that step; nan ends with exit code 0), `hang:STEP`, `silent`,
`no_table`, `another:ARGUMENT=VALUE` (what is built is not what was told), `reseed` (other samples),
`leftover` (a process that outlives it).
STANDIN_DATA=real has the data set built, which takes seconds to import.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
WORLD = int(os.environ["GPUS_PER_NODE"])
FAULT, *DETAILS = os.environ.get("STANDIN_FAULT", "").split(":")
GENERATION = f"[{os.environ.get('STANDIN_LINES', 'v25.10')}]\n"
LINES = dict(
    line.split("=", 1)
    for line in (ROOT / "lines.txt").read_text().partition(GENERATION)[2].partition("\n\n[")[0].splitlines()
    if not line.startswith("#")
)
WIDTH = 48
STEP_MS = {1: 90.0, 2: 30.0}
"""Every other iteration takes 200 + its number."""


def preset(path):
    content = yaml.safe_load(path.read_text())
    merged = {}
    for name in content.pop("extends", []):
        merged |= preset(path.parent / name)
    return merged | content


def line(name, **values):
    fixed = {"time": "20251110 10:00:00", "rank": 0, "last": WORLD - 1, "world": WORLD}
    print(LINES[name].replace("<ESC>", "\x1b").format(**fixed, **values), flush=True)


def show_model(said):
    size = said["vocab_size"] + 1
    multiple = said["make_vocab_size_divisible_by"] * said["tensor_model_parallel_size"]
    padded = -(-size // multiple) * multiple
    line("print", text=f" > padded vocab (size: {size}) with {padded - size} dummy tokens (new size: {padded})")
    h, f, g = said["hidden_size"], said["ffn_hidden_size"], said["num_query_groups"] * said["kv_channels"]
    q = said["num_attention_heads"] * said["kv_channels"]
    layer = 2 * h * (q + g) + 2 * h + (q + 2 * g if said["add_qkv_bias"] else 0)
    experts = said["num_experts"] or 0
    here = experts // said["expert_model_parallel_size"]
    layer += h * experts + 3 * h * (here * said["moe_ffn_hidden_size"] if experts else f)
    layer += 2 * said["kv_channels"] if said["qk_layernorm"] else 0
    count = said["num_layers"] * layer + 2 * padded * h + h
    where = "(tensor, pipeline) model parallel rank (0, 0)"
    line("print", text=f" > number of parameters on {where}: {count}")


def build_data(said):
    """megatron-core's own data set with the arguments that Primus's trainer gives it (trainer.py of v25.10)."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    class Tokenizer:
        unique_identifiers = {"class": "NullTokenizer"}
        vocab_size = said["vocab_size"] + 1
        eod = said["vocab_size"]

    config = GPTDatasetConfig(
        random_seed=said["seed"] + (FAULT == "reseed"),
        sequence_length=said["seq_length"],
        blend=None,
        blend_per_split=[(said["train_data_path"], None), None, None],
        split=said["split"],
        path_to_cache=said["data_cache_path"],
        tokenizer=Tokenizer(),
        reset_position_ids=said["reset_position_ids"],
        reset_attention_mask=said["reset_attention_mask"],
        eod_mask_loss=said["eod_mask_loss"],
        create_attention_mask=said["create_attention_mask_in_dataloader"],
    )
    sizes = [said["train_iters"] * said["global_batch_size"], 0, 0]
    BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


def rate_after(said, step):
    """Megatron's learning rate after `step` iterations: linear warm-up, then a cosine."""
    import math

    warmup, total = said["lr_warmup_iters"], said["lr_decay_iters"]
    if step <= warmup and warmup > 0:
        return said["lr_warmup_init"] + (said["lr"] - said["lr_warmup_init"]) * step / warmup
    part = (step - warmup) / (total - warmup)
    return said["min_lr"] + (said["lr"] - said["min_lr"]) * (math.cos(math.pi * part) + 1) / 2


def show_step(said, step):
    is_nan = FAULT == "nan" and step == int(DETAILS[0])
    ms = STEP_MS.get(step, 20.0 + step / 10)
    time.sleep(ms / 1000)
    if "twice" in LINES and step == 2:
        ms = (STEP_MS[1] + STEP_MS[2]) / 2
    values = {
        "step": step,
        "total": said["train_iters"],
        "samples": step * said["global_batch_size"],
        "ms": ms,
        "mean_ms": ms,
        "tflops": 100.0,
        "tokens": said["seq_length"] * said["global_batch_size"] / (ms / 1000) / WORLD,
        "lr": rate_after(said, step),
        "gbs": said["global_batch_size"],
        "loss": "" if is_nan else LINES["loss"].format(value=12 - step / 10),
        "norm": 1 + step / 1000,
        "nan": 0,
    }
    for _ in range(2 if "twice" in LINES else 1):
        line("first" if step <= 2 else "later", **values)


def write_trace(said, step, folder):
    """As Megatron with Primus's patch: the profiler's `step()` at the begin of this iteration ends the last one."""
    if not said["profile"] or step != said["profile_step_end"]:
        return
    assert said["use_pytorch_profiler"]
    place = folder / "tensorboard"
    place.mkdir()
    for rank in said["profile_ranks"]:
        numbers = range(said["profile_step_start"], said["profile_step_end"])
        events = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n, "dur": 1} for n in numbers
        ]
        name = f"primus-megatron-exp[{folder.name}]-rank[{rank}].1764.pt.trace.json"
        (place / f"{name}.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def strike(step):
    """Fail if this is the step for it."""
    at = int(DETAILS[-1]) if DETAILS and DETAILS[-1].isdigit() else None
    if step != at:
        return
    if FAULT == "exit":
        print("the last words of a stand-in", flush=True)
        sys.exit(int(DETAILS[0]))
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "oom":
        print("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", flush=True)
        print("\n".join(f"[rank{rank}]: Traceback, line {rank}" for rank in range(20)), flush=True)
        sys.exit(1)
    while FAULT == "hang":
        time.sleep(1)


def main():
    content = yaml.safe_load(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    trainer = content["modules"]["pre_trainer"]
    configs = ROOT / "primus" / "configs"
    said = preset(configs / "modules" / "megatron" / trainer["config"])
    said |= preset(configs / "models" / "megatron" / trainer["model"])
    for key, value in trainer["overrides"].items():
        if key not in said:
            raise Exception(f"Override namespace failed: can't find key({key}) in namespace")
        said[key] = value
    folder = Path(content["workspace"], content["work_group"], content["user_name"], content["exp_name"])
    logs = folder / "logs" / "pre_trainer" / f"rank-{WORLD - 1}"
    logs.mkdir(parents=True)
    (logs / "info.log").write_text(json.dumps(dict(os.environ)))
    if FAULT == "silent":
        return
    # the corrections that Megatron and Primus make before they print
    parallel = said["tensor_model_parallel_size"] * said["pipeline_model_parallel_size"] * said["context_parallel_size"]
    said |= {
        "data_parallel_size": WORLD // parallel,
        "world_size": WORLD,
        "train_data_path": said["train_data_path"].split(" "),
        "params_dtype": "torch.bfloat16" if said["bf16"] else "torch.float32",
    }
    if FAULT == "another":
        name, _, value = DETAILS[0].partition("=")
        said[name] = yaml.safe_load(value)
    if FAULT != "no_table":
        line("print", text="------------------------ arguments ------------------------")
        for name in sorted(said, key=str.lower):
            line("print", text=f"  {name} {'.' * (WIDTH - len(name))} {said[name]}")
        line("print", text="-------------------- end of arguments ---------------------")
    show_model(said)
    if os.environ.get("STANDIN_DATA") == "real":
        build_data(said)
    if FAULT == "leftover":
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for step in range(1, said["train_iters"] + 1):
        write_trace(said, step, folder)
        show_step(said, step)
        if step == 1:
            memory = "allocated: 1000.00 | max allocated: 2000.00 | reserved: 3000.00 | max reserved: 3000.00"
            line("print", text=f"[Rank 0] (after 1 iterations) memory (MB) | {memory}")
        strike(step)
    line("print", text="[after training is done] datetime: 2025-11-10 10:00:10 ")


main()
