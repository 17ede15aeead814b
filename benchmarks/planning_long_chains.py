"""Times and peaks of `plan` and `train` for chains of 120 to 1,000 layers.

    python3 benchmarks/planning_long_chains.py target/release/plimsoll

Each line is one process: the layers, the command, the budget, the processor's and the clock's seconds, the most memory it
held as the kernel counts it, and how it ended. `--quick` leaves out all but 120 and 300 layers.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20


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


def measure(arguments, folder):
    """Seconds of the processor, of the clock, peak in MiB, and the exit code."""
    with open(os.path.join(folder, "said"), "w") as said:
        clock = time.monotonic()
        child = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    passed = time.monotonic() - clock
    return usage.ru_utime + usage.ru_stime, passed, usage.ru_maxrss * 1024 / MIB, child.returncode


def main():
    program = os.path.abspath(sys.argv[1])
    lengths = [120, 300] if "--quick" in sys.argv else [120, 300, 600, 1000]
    train = "train --max-steps 1 --synthetic --report-to none --output-dir out"
    print("| layers | command | budget, MiB | tier | processor, s | clock, s | peak, MiB | exit |")
    print("|--:|---|--:|---|--:|--:|--:|--:|")
    for layers in lengths:
        for command in ["plan", train]:
            for budget in [68, 25 + layers * 95 // 100, 4096]:
                for tier in [[], ["--offload", "disk"]]:
                    with tempfile.TemporaryDirectory() as folder:
                        with open(os.path.join(folder, "config.json"), "w") as file:
                            json.dump(config(layers), file)
                        shape = "--config config.json --seq-len 32 --global-batch 8 --threads 2"
                        arguments = [program, *command.split(), *shape.split(), "--memory", f"{budget}MiB", *tier]
                        used, passed, peak, code = measure(arguments, folder)
                    name, away = command.split()[0], tier[-1] if tier else "none"
                    row = f"| {layers} | {name} | {budget} | {away} | {used:.2f} | {passed:.2f} | {peak:.0f} | {code} |"
                    print(row, flush=True)


if __name__ == "__main__":
    main()
