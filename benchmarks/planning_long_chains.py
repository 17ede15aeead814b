"""Times and peaks of `plan` and `train` for chains of 120 to 1,000 layers.

    python3 benchmarks/planning_long_chains.py target/release/plimsoll

Each line is one process: the layers, the command, the tier, the budget, the processor's and the clock's seconds, the most
memory it held as the kernel counts it, and how it ended (0: a plan, 2: refused, -9: killed). For each tier there are three
budgets: one with a plan, one in which a search can be made and nothing fits, and one too small for a search. A tier in the
host's memory belongs to a GPU, which need not be here, so that budget is the GPU's and says nothing about the process.

Where control groups can be made (as root), every process whose budget is its own memory runs in one that is as large as its
budget: a process that crosses it is killed. The page cache counts there too, but gives way. `train` takes one step; the
seconds before it, which are those of planning and of a start, stand in a column of their own.

`--quick` leaves out all but 120 and 300 layers, `--plan` leaves out `train`, and `--train` leaves out `plan`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
TRAIN = "train --max-steps 1 --synthetic --report-to none --output-dir out --json"
# The memory controller of control groups, version 2 and version 1, with the names of the limit and of the processes.
GROUPS = [
    ("/sys/fs/cgroup", "memory.max", "cgroup.controllers"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
]


def config(layers):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }


def budgets(layers, tier):
    """In MiB: with a plan, without one, and too small for a search."""
    if tier == "host":
        return [610 + layers // 4, 602]
    return [25 + layers * 95 // 100, 40 + layers * 40 // 100, 68]


class Group:
    """A control group of some bytes of memory, or none where none can be made."""

    def __init__(self, limit):
        self.folder = None
        for root, name, sign in GROUPS:
            folder = os.path.join(root, f"plimsoll_{os.getpid()}")
            try:
                if limit is None or not os.path.exists(os.path.join(root, sign)):
                    continue
                os.mkdir(folder)
                self.folder = folder
                with open(os.path.join(folder, name), "w") as file:
                    file.write(str(limit))
                return
            except OSError:
                self.remove()

    def enter(self):
        if self.folder is not None:
            with open(os.path.join(self.folder, "cgroup.procs"), "w") as file:
                file.write("0")

    def remove(self):
        if self.folder is not None:
            os.rmdir(self.folder)
            self.folder = None


def measure(arguments, folder, limit):
    """Seconds of the processor, of the clock, and before the first step; peak in MiB, exit code, and whether in a group."""
    group = Group(limit)
    grouped = group.folder is not None
    with open(os.path.join(folder, "said"), "w") as said:
        clock = time.monotonic()
        child = subprocess.Popen(
            arguments, cwd=folder, stdout=subprocess.PIPE, stderr=said, preexec_fn=group.enter, text=True
        )
        first = None
        for line in child.stdout:
            if line.startswith("{") and '"step":1,' in line and first is None:
                record = json.loads(line)
                first = time.monotonic() - clock - record["tokens"] / record["tokens_per_second"]
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    passed = time.monotonic() - clock
    group.remove()
    return usage.ru_utime + usage.ru_stime, passed, first, usage.ru_maxrss * 1024 / MIB, child.returncode, grouped


def grid():
    lengths = [120, 300] if "--quick" in sys.argv else [120, 300, 600, 1000]
    commands = [command for command, other in [("plan", "--train"), (TRAIN, "--plan")] if other not in sys.argv]
    for layers in lengths:
        for command in commands:
            for tier in ["none", "disk", "host"] if command == "plan" else ["none", "disk"]:
                for budget in budgets(layers, tier):
                    yield layers, command, tier, budget


def main():
    program = os.path.abspath(sys.argv[1])
    flags = {"none": [], "disk": ["--offload", "disk"], "host": ["--offload", "host", "--device", "cuda:4090"]}
    columns = ["layers", "command", "tier", "budget, MiB", "exit", "processor, s", "clock, s", "before a step, s", "peak, MiB", "group"]
    print("| " + " | ".join(columns) + " |")
    print("|--:|---|---|--:|--:|--:|--:|--:|--:|---|")
    for layers, command, tier, budget in grid():
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w") as file:
                json.dump(config(layers), file)
            shape = "--config config.json --seq-len 32 --global-batch 8 --threads 2 --costs modelled"
            arguments = [program, *command.split(), *shape.split(), "--memory", f"{budget}MiB", *flags[tier]]
            limit = None if tier == "host" else budget * MIB
            used, passed, first, peak, code, grouped = measure(arguments, folder, limit)
        name, before = command.split()[0], "" if first is None else f"{first:.2f}"
        row = [layers, name, tier, budget, code, f"{used:.2f}", f"{passed:.2f}", before, f"{peak:.0f}", "yes" if grouped else ""]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
