"""The table at the end of a run: results, cost, output folder, and commands to run next."""

import shlex
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.table import Table

from ablate.config.parts import class_attribute
from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import command_line
from ablate.run_files import read_mapping, read_text

# Every class and group has its own metric; the table shows at most this many of them.
PARTS = 8
OF_100 = ("bleu", "chrf")  # sacrebleu's; other shares are of 1
# Arguments that belong to one run, and not to a variant of it.
OF_RUN = ("model.attention=", "run_dir=", "hydra.", "study.")


def show_result(result: dict[str, Any], run_dir: Path, cfg: DictConfig) -> None:
    """Print the summary of a finished run."""
    sample = run_dir / "sample.txt"
    one_batch = result.get("one_batch")  # of debug=overfit, which has no validation
    table = Table(
        title=f"{_names(result, cfg)}, seed {result['seed']}",
        caption=None if one_batch else "* selects the best weights, to which all values apply",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric")
    table.add_column("value", justify="right")
    metrics = {} if one_batch else result["metrics"]
    if one_batch:
        losses = f"{one_batch['first_loss']:.4g} -> {one_batch['last_loss']:.4g}"
        table.add_row("loss of the one batch", losses)
    parts = [name for name in metrics if name.count("/") > 1]
    for name, value in metrics.items():
        if name not in parts or len(parts) <= PARTS:
            best = " *" if name == result["metric"]["name"] else ""
            scale = " (0 to 100)" if name.rpartition("/")[2] in OF_100 else ""
            table.add_row(name + scale + best, "-" if value is None else f"{value:.4f}")
    table.add_section()
    parameters = result["parameters"]
    table.add_row(
        "parameters",
        f"{parameters['total']:,} ({parameters['non_embedding']:,} without embeddings)",
    )
    if cache := result.get("cache_bytes"):
        fixed = f" and {cache['state']:,} bytes of fixed size" if cache["state"] else ""
        table.add_row("decoding state", f"{cache['per_token']:,} bytes per token{fixed}")
    best = "" if one_batch else f" (best weights: step {result['best_step']:,})"
    table.add_row("steps", f"{result['steps']:,}{best}")
    if chosen := result.get("chosen_on"):
        some = f"{chosen['examples']:,} of {chosen['of']:,} examples in training, all at the end"
        table.add_row("validation", some)
    if epochs := result.get("epochs"):
        said = (f"{name} {n:.2f}{' (repeats)' * (n > 1)}" for name, n in epochs.items())
        table.add_row("epochs", ", ".join(said))
    throughput = result["throughput"]
    rate = f"{throughput['value']:,.0f} {throughput['unit']}"
    if (share := throughput.get("waiting")) is not None:
        rate += f", {share:.0%} of the time waiting for data"
    if (share := throughput.get("mfu")) is not None:
        rate += f", MFU {share:.1%}"
    table.add_row("throughput", rate)
    table.add_row(
        "time", f"{result['wall_seconds']:.0f} s, {result['train_seconds']:.0f} s training"
    )
    if result["kernels"]:
        table.add_row("kernels", ", ".join(sorted(set(result["kernels"].values()))))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    if caution := result.get("caution"):
        console.print(f"Note: {caution}.", style="bold")
    if sample.exists():
        console.print("Sample output:", style="bold")
        console.print(read_text(sample))
        console.print()
    console.print("Output:", style="bold")
    console.print(f"  {run_dir}  (result.json, metrics.csv, figures/, checkpoints/)")
    if result["logged_to"]:
        console.print(f"  {result['logged_to']}")
    console.print("Next steps:", style="bold")
    for command in next_commands(result, run_dir, cfg.task._target_):
        console.print(f"  {command}")


def _names(result: dict[str, Any], cfg: DictConfig) -> str:
    """Return the options that make up the model and the data."""
    choices = result["choices"]
    shown = ("model", "model.attention", "model.cross_attention", "pos_enc", "model.mask", "data")
    silent = (None, "same")  # no such component, or no option
    layers = cfg.model.get("layers") or {}
    differ = [key for key, pattern in layers.items() if pattern is not None]
    by_layer = {key if key == "pos_enc" else f"model.{key}": "by layer" for key in differ}
    options = {name: choices[name] for name in shown if choices.get(name) not in silent} | by_layer
    return ", ".join(f"{name}={option}" for name, option in options.items())


def next_commands(result: dict[str, Any], run_dir: Path, task: str) -> list[str]:
    """Commands that make sense for this run. task: the path of its task's class."""
    provenance = read_mapping(run_dir / "provenance.json")
    packages = sorted({module.partition(".")[0] for module in provenance.get("custom_code", {})})
    words = [run_dir, *(word for package in packages for word in ("--allow", package))]
    commands = [command_line("ablate.evaluate", *words)]
    if (score := result["choices"].get("model.attention", "none")) != "none":
        commands.insert(0, command_line("ablate.show", *words))
        typed = [w for w in provenance.get("arguments", ()) if not w.startswith(OF_RUN)]
        other = "dot" if score == "additive" else "additive"
        again = command_line("ablate", *typed, f"model.attention={other}")
        commands.append(f"{again}   # another score")
    made = (run_dir / "sample.txt").exists() or result.get("artifacts")
    presenter = class_attribute(task, "presenter")
    if made and presenter.family:  # else ablate.generate makes nothing of it
        options = presenter.example_options.replace(
            "{prompt}", shlex.quote(result.get("prompt", "The "))
        )
        command = f"{command_line('ablate.generate', *words)} {options}"
        commands.insert(0, command.rstrip())
    return commands
