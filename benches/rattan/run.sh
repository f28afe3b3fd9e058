#!/bin/sh
# Keiro's link emulator beside rattan 0.1.1 (https://crates.io/crates/rattan), in one run, by the
# same measurement: delay at 2 and 100 ms, rate at 100 Mbit/s. Not part of the test run.
#
# Usage: benches/rattan/run.sh [RUNS]      RUNS of each case with each emulator, in turn; 5
#
# Needs root, iproute2, a Rust toolchain and the network, once: rattan is installed into a
# temporary directory that is removed at the end, or into $RATTAN_ROOT, which is kept.
#
# The packets are stamped by the kernel where they leave one host's interface and where they reach
# the other's. Each line is one run; the table at the end has the medians of the amounts.
set -eu

version=0.1.1
runs=${1:-5}
case $runs in
*[!0-9]* | '' | 0)
    echo "run.sh: RUNS must be a number from 1, not \`$runs\`" >&2
    exit 64
    ;;
esac
if [ "$(id -u)" -ne 0 ]; then
    echo "run.sh: needs root, for network namespaces" >&2
    exit 1
fi
repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
rattan_pid=
finish() {
    trap - EXIT INT TERM HUP
    # rattan removes its namespaces when the programs inside have ended.
    touch "$work/done"
    if [ -n "$rattan_pid" ]; then
        wait "$rattan_pid" || true
    fi
    rm -rf "$work"
}
trap finish EXIT
trap 'finish; exit 130' INT TERM HUP

root=${RATTAN_ROOT:-$work/rattan}
if ! "$root/bin/rattan" --version 2>/dev/null | grep -q " $version"; then
    echo "installing rattan $version into $root" >&2
    cargo install rattan --version "$version" --locked --root "$root" \
        --target-dir "$work/target" >&2
fi
(cd "$repository" && cargo build --release -p keiro-lab --example emulator_accuracy >&2)
target=$(cd "$repository" && cargo metadata --format-version 1 --no-deps |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
accuracy=$target/release/examples/emulator_accuracy

# The cells of one direction; $1 is its prefix, $2 the case.
cells() {
    case $2 in
    delay-2ms) printf '[cells.%s]\ntype = "Delay"\ndelay = "2ms"\n' "$1" ;;
    delay-100ms) printf '[cells.%s]\ntype = "Delay"\ndelay = "100ms"\n' "$1" ;;
    rate-100Mbit)
        printf '[cells.%s]\ntype = "Bw"\nbandwidth = "100Mbps"\nbw_type = "NetworkLayer"\n' "$1"
        printf 'queue = "DropTail"\nqueue_config = { packet_limit = 1000 }\n'
        ;;
    esac
}

# What rattan runs in its two namespaces, which are named after the RATTAN_ID that it gives them.
# As files, because rattan takes a dash for an option of its own.
cat >"$work/measure" <<'EOF'
#!/bin/sh
"$1" path "$2" "ns-left-$RATTAN_ID:vL1-L-$RATTAN_ID:10.1.1.1" \
    "ns-right-$RATTAN_ID:vR1-R-$RATTAN_ID:10.2.1.1"
status=$?
touch "$3/done"
exit $status
EOF
cat >"$work/attend" <<'EOF'
#!/bin/sh
while [ -d "$1" ] && [ ! -e "$1/done" ]; do sleep 0.1; done
EOF
chmod +x "$work/measure" "$work/attend"

# One case over a path made by rattan.
with_rattan() {
    config=$work/$1.toml
    {
        printf '[env]\nmode = "Isolated"\n'
        cells up "$1"
        cells down "$1"
        printf '[links]\nleft = "up"\nup = "right"\nright = "down"\ndown = "left"\n'
    } >"$config"
    rm -f "$work/done"
    "$root/bin/rattan" run --config "$config" --left-stdout --left-stderr \
        --left "$work/measure" "$accuracy" "$1" "$work" \
        --right "$work/attend" "$work" >"$work/line" &
    rattan_pid=$!
    wait "$rattan_pid"
    rattan_pid=
    sed -n 's/^\([^ ]*\) path /\1 rattan /p' "$work/line" | tee -a "$work/lines"
}

run=0
while [ "$run" -lt "$runs" ]; do
    run=$((run + 1))
    for name in delay-2ms delay-100ms rate-100Mbit; do
        "$accuracy" own "$name" | tee -a "$work/lines"
        with_rattan "$name"
    done
done

# The median of field $3 in the lines of case $1 and emulator $2 that are not void.
median() {
    awk -v name="$1" -v emulator="$2" -v field="$3" '
        $1 == name && $2 == emulator && $3 != "VOID" {
            for (i = 3; i < NF; i++) if ($i == field) {
                value = $(i + 1) + 0
                print value < 0 ? -value : value
                break
            }
        }' "$work/lines" | sort -g | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "-" }'
}

echo
echo "medians of $runs runs, $(nproc) CPUs, Linux $(uname -r), commit $(git -C "$repository" rev-parse --short HEAD)"
printf '%-14s %-8s %18s %18s %18s\n' case emulator 'mean error (us)' 'p99 error (us)' 'rate error (%)'
for emulator in keiro rattan; do
    for name in delay-2ms delay-100ms; do
        printf '%-14s %-8s %18s %18s %18s\n' "$name" "$emulator" \
            "$(median "$name" "$emulator" mean)" "$(median "$name" "$emulator" p99)" -
    done
    printf '%-14s %-8s %18s %18s %18s\n' rate-100Mbit "$emulator" - - \
        "$(median rate-100Mbit "$emulator" rate_error_percent)"
done
