"""Times and peaks of `plan` and `train` for chains of 120 to 1,000 layers.

    python3 benchmarks/planning_long_chains.py target/release/plimsoll

Each line is one process: the layers, the command, the tier, the budget, the processor's and the clock's seconds, the most
memory it held as the kernel counts it, and how it ended (0: a plan, 2: refused). For each tier there are three budgets: one
with a plan, one in which a search can be made and nothing fits, and one too small for a search. A tier in the host's memory
belongs to a GPU, which need not be here, so that budget is the GPU's and says nothing about the process. `--quick` leaves out
all but 120 and 300 layers, `--plan` leaves out `train`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
TRAIN = "train --max-steps 1 --synthetic --report-to none --output-dir out"


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


def measure(arguments, folder):
    """Seconds of the processor, of the clock, peak in MiB, and the exit code."""
    with open(os.path.join(folder, "said"), "w") as said:
        clock = time.monotonic()
        child = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    passed = time.monotonic() - clock
    return usage.ru_utime + usage.ru_stime, passed, usage.ru_maxrss * 1024 / MIB, child.returncode


def grid():
    lengths = [120, 300] if "--quick" in sys.argv else [120, 300, 600, 1000]
    commands = ["plan"] if "--plan" in sys.argv else ["plan", TRAIN]
    for layers in lengths:
        for command in commands:
            for tier in ["none", "disk", "host"] if command == "plan" else ["none", "disk"]:
                for budget in budgets(layers, tier):
                    yield layers, command, tier, budget


def main():
    program = os.path.abspath(sys.argv[1])
    flags = {"none": [], "disk": ["--offload", "disk"], "host": ["--offload", "host", "--device", "cuda:4090"]}
    print("| layers | command | tier | budget, MiB | exit | processor, s | clock, s | peak, MiB |")
    print("|--:|---|---|--:|--:|--:|--:|--:|")
    for layers, command, tier, budget in grid():
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w") as file:
                json.dump(config(layers), file)
            shape = "--config config.json --seq-len 32 --global-batch 8 --threads 2 --costs modelled"
            arguments = [program, *command.split(), *shape.split(), "--memory", f"{budget}MiB", *flags[tier]]
            used, passed, peak, code = measure(arguments, folder)
        name = command.split()[0]
        row = f"| {layers} | {name} | {tier} | {budget} | {code} | {used:.2f} | {passed:.2f} | {peak:.0f} |"
        print(row, flush=True)


if __name__ == "__main__":
    main()
