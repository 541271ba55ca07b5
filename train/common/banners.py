"""Lines that the reporting rank prints before the first and after the last step of a training."""

from __future__ import annotations

from train.job.job import Job
from train.job.report import JobReport
from utils.provenance import origin
from utils.results import raw_samples


def print_start(job: Job, report: JobReport) -> None:
    """Print the model, machine and settings of the training."""
    config, resolved = job.config, report.resolved
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions().items())
    unit = "ranks on" if config.platform == "cpu" else "x"
    sizes = ["tp", "pp", "cp", "dp"]
    if job.spec.num_experts:
        sizes.insert(3, "ep")
    ranks = " ".join(f"{name.upper()} {resolved[name]}" for name in sizes)
    tokens = config.train_iterations * config.tokens_per_step
    lines = (
        f"=== {job.name}: {job.model} {config.model_size}, {resolved['parameter_count']:,} parameters, "
        f"{resolved['precision']}",
        f"    {config.num_gpus} {unit} {report.gpu_info['device_name']}; {versions}",
        f"    {config.train_iterations} steps of GBS {config.global_batch_size} = MBS {config.micro_batch_size} x "
        f"GA {config.gradient_accumulation} x DP {config.data_parallel_size} at SL {config.sequence_length}; {ranks}; "
        f"{tokens:,} tokens",
    )
    print("\n".join(lines), flush=True)
    # a mean over ranks would need a collective inside the training
    if resolved["dp"] > 1:
        print("    the loss shown is this rank's; the result holds the mean over ranks", flush=True)


def print_end(job: Job, report: JobReport) -> None:
    """Print the measurements."""
    result = report.result("ok", None)
    speed, losses = result["performance_metrics"], result["loss_values"]
    peak_gb = result["memory_metrics"]["peak_memory_allocated_gb"]
    peak = "peak unknown" if peak_gb is None else f"peak {peak_gb:.1f} GB"
    print(
        f"=== {job.name}: {speed['avg_step_time_seconds']:.3f} s a step, "
        f"{speed['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, loss {losses[0]:.4f} -> {losses[-1]:.4f}, {peak}",
        flush=True,
    )
    for warning in result["warnings"]:
        print(f"    warning: {warning}", flush=True)
    for line in raw_samples.lines(result):
        print(line, end="", flush=True)
