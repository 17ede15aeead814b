# Sourced by the examples: the binary, the folder for results, and checks.

plimsoll=${PLIMSOLL:-plimsoll}
here=$(dirname "${BASH_SOURCE[0]}")
data=$here/data
tokenizers=$here/../testdata/tokenizer
out=${1:-$(mktemp -d)}
mkdir -p "$out"

# The last training loss that a run has recorded.
last_loss() { sed -n 's/^{"step":.*,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | tail -n 1; }

# The first one.
first_loss() { sed -n 's/^{"step":.*,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | head -n 1; }

# The last validation loss.
last_eval_loss() { sed -n 's/^{"event":"evaluation".*"eval_loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | tail -n 1; }

# The arena a plan asks for, in bytes.
arena() { "$plimsoll" plan --json "$@" | sed 's/.*"arena_bytes":\([0-9]*\),.*/\1/'; }

# below WHAT NUMBER LIMIT
below() {
    if awk -v number="$2" -v limit="$3" 'BEGIN { exit !(number != "" && number + 0 < limit + 0) }'; then
        echo "ok: $1 is $2, below $3"
    else
        echo "$(basename "$0"): $1 is ${2:-missing} and should be below $3" >&2
        exit 1
    fi
}

# same WHAT FOUND EXPECTED
same() {
    if [ "$2" = "$3" ]; then
        echo "ok: $1: $2"
    else
        echo "$(basename "$0"): $1 is \`$2\` and should be \`$3\`" >&2
        exit 1
    fi
}
