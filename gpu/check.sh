#!/usr/bin/env bash
# Proves and measures the kernels on a machine with one GPU, in less than ten minutes. docs/gpu-check.md says what each step shows.
#
#   gpu/check.sh               all steps
#   gpu/check.sh STEP...       some: probe correct graphs abort threads processes time nccl sanitizer torch; the last one by name only
#   gpu/check.sh --small ...   few ranks, threads and bytes
#
# It needs no network and no Rust where gpu/bin was brought along (`cargo xtask gpu` makes it), and builds it otherwise. GPU_CHECK names another
# program, GPU_CHECK_NCCL the files that may be NCCL, with colons between them. JSON and the log go to $OUT, or target/gpu. The table comes
# last; the exit code says whether all is well.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${OUT:-target/gpu}
mkdir -p "$out" || exit 1
log=$out/check.log
: >"$log"

small=()
steps=()
for word in "$@"; do
    case $word in
    --small) small=(--small) ;;
    probe | correct | graphs | abort | threads | processes | time | nccl | sanitizer | torch) steps+=("$word") ;;
    *) sed -n '2,6p' "$0" >&2 && exit 2 ;;
    esac
done

program=${GPU_CHECK:-gpu/bin/ccl-gpu-check}
if [ ! -x "$program" ]; then
    if ! command -v cargo >/dev/null; then
        echo "there is no $program and no cargo: run 'cargo xtask gpu' elsewhere, and bring gpu/bin along" >&2
        exit 1
    fi
    cargo build --release --locked --offline --package ccl-gpu-check --package ccl-library || exit 1
    program=${CARGO_TARGET_DIR:-target}/release/ccl-gpu-check
fi

# Of the driver's compiler the first run is to be a first one.
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# An NCCL that was brought along is packed. Without it the program looks for the machine's own.
if [ -f gpu/bin/libnccl.so.2.gz ] && [ -z "${GPU_CHECK_NCCL+set}" ]; then
    gunzip --to-stdout gpu/bin/libnccl.so.2.gz >"$scratch/libnccl.so.2" && export GPU_CHECK_NCCL_FIRST=$scratch/libnccl.so.2
fi
export CUDA_CACHE_PATH=$scratch/cache CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32

# run SECONDS COMMAND...: with its output in the log, too.
run() {
    local seconds=$1
    shift
    timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee -a "$log"
}

# Memory errors of the kernels, on few cases: it makes everything many times slower.
sanitizer() {
    local found result failed line
    found=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
    if [ -z "$found" ]; then
        result=true failed=0 line="compute-sanitizer is not installed: nobody has looked for memory errors"
    else
        run 75 "$found" --tool memcheck --error-exitcode 86 \
            "$program" correct --small --seconds 65 --out "$scratch/sanitizer" >"$scratch/said"
        local code=$?
        line="memcheck over correct --small: exit code $code; $(grep -ho 'ERROR SUMMARY: [^\"]*' "$scratch/said" | tail -n 1)"
        if [ $code -eq 0 ]; then result=true failed=0; else result=false failed=1; fi
    fi
    tell sanitizer "$result" "$failed" "$line"
}

# tell STEP WELL FAILED LINE: what came of a step of this script.
tell() {
    printf '{"step": "%s", "ok": %s, "finished": true, "failed": %s, "lines": ["%s"], "failures": [], "data": {}}\n' \
        "$1" "$2" "$3" "$4" >"$out/$1.json"
}

# CUDA tensors of the PyTorch that is here, with a backend that is built for it.
torch() {
    local package=$scratch/python code
    if [ ! -d gpu/bin/python ]; then
        tell torch false 1 "there is no gpu/bin/python: run 'cargo xtask gpu --torch' elsewhere, and bring gpu/bin along"
        return
    fi
    cp -r gpu/bin/python "$package"
    if ! PYTHONPATH=$package run 180 python3 -m rdmaccl.build >"$scratch/built"; then
        tell torch false 1 "the backend could not be built for the torch that is here: see check.log"
        return
    fi
    PYTHONPATH=$package run "${GPU_CHECK_TORCH_SECONDS:-240}" python3 python/tests gpu >"$scratch/tested"
    code=$?
    local failed
    failed=$(grep -c '^    gpu::' "$scratch/tested")
    if [ $code -eq 0 ]; then
        tell torch true 0 "$(grep '^test result' "$scratch/tested")"
    else
        tell torch false "$((failed > 0 ? failed : 1))" "exit code $code: $(grep ' tests passed' "$scratch/tested" | tr '\n' ';')"
    fi
}

if [ ${#steps[@]} -eq 0 ]; then
    rm -f "$out/sanitizer.json" "$out/torch.json"
    run 515 "$program" all --out "$out" "${small[@]}" >/dev/null
    sanitizer
else
    for step in "${steps[@]}"; do
        if [ "$step" = sanitizer ] || [ "$step" = torch ]; then
            "$step"
        else
            # Longer than the program's own deadline for any step.
            run 160 "$program" "$step" --out "$out" "${small[@]}" >/dev/null
        fi
    done
fi
"$program" table --out "$out" | tee -a "$log"
exit "${PIPESTATUS[0]}"
