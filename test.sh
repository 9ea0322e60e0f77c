#!/usr/bin/env bash
# All tests of the repository. `./test.sh` is what CI runs; `./test.sh long` adds the campaigns that take minutes each.
# `./test.sh STAGE...` runs only the stages named (see the list at the end). Installs what is missing with the system's package manager.
# Ends with "N passed, M failed"; the first stage that fails ends the run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

LOGS=$(mktemp -d "${TMPDIR:-/tmp}/uringmq-test.XXXXXX")
trap 'rm -rf "$LOGS"' EXIT
if [ -n "${CI:-}" ]; then export CARGO_INCREMENTAL=0; fi
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
PASSED=0
FAILED=0

# stage NAME COMMAND...: prints what it is and how long it took; ends the whole run if it fails.
stage() {
  local name=$1 begun=$SECONDS code=0
  shift
  echo "=== $name"
  { "$@"; } > >(tee "$LOGS/$name.log") 2>&1 || code=$? # braces: else an outside command's tee is a child of the child
  wait "$!" # the log is complete only when tee has ended
  count "$LOGS/$name.log"
  if [ "$code" -ne 0 ]; then
    if [ "$FAILED" -eq 0 ]; then FAILED=1; fi
    echo "=== $name FAILED after $((SECONDS - begun)) s (exit code $code)"
    echo "$PASSED passed, $FAILED failed"
    exit 1
  fi
  echo "=== $name done in $((SECONDS - begun)) s"
}

# Adds the closing lines of cargo's test binaries and of the interop runner to the total.
count() {
  local passed failed
  read -r passed failed < <(sed -nE 's/^test result: [a-zA-Z]+\. ([0-9]+) passed; ([0-9]+) failed.*/\1 \2/p; s/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$1" \
    | awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }')
  PASSED=$((PASSED + passed))
  FAILED=$((FAILED + failed))
}

as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

# go 1.19, the oldest that compiles the Go suite, is what Debian 12 has.
tools() {
  local missing=()
  if ! command -v cargo >/dev/null; then
    echo "cargo is missing: install Rust with rustup (stable, with rustfmt and clippy)"
    return 1
  fi
  command -v cc >/dev/null && command -v make >/dev/null || missing+=(build-essential)
  command -v python3 >/dev/null || missing+=(python3-minimal)
  javac --release 17 -version >/dev/null 2>&1 || missing+=(openjdk-17-jdk-headless)
  command -v mvn >/dev/null || missing+=(maven)
  command -v go >/dev/null || missing+=(golang-go)
  command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
  if [ ${#missing[@]} -gt 0 ]; then
    echo "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q || return 1
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" || return 1
  fi
  cargo --version && cargo fmt --version && cargo clippy --version && java -version && mvn -v && go version
}

# What no compiler says: sources that no `mod` names, leftovers, absolute paths of one machine.
tree() {
  python3 - <<'PY'
import re
import subprocess
import sys

files = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
faults = []

def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()

sources = [f for f in files if f.endswith(".rs") and f.count("/") >= 2 and f.split("/")[1] == "src"]
for path in sources:
    crate, _, inner = path.partition("/src/")
    if inner in ("lib.rs", "main.rs") or inner.startswith("bin/"):
        continue
    parts = inner[:-3].split("/")
    if parts[-1] == "mod":
        parts.pop()
    name, parent = parts[-1], parts[:-1]
    base = crate + "/src/" + "".join(p + "/" for p in parent)
    places = [base + "mod.rs", base.rstrip("/") + ".rs"] if parent else [base + "lib.rs", base + "main.rs"]
    named = re.compile(r"\bmod\s+" + name + r"\s*;|#\[path\s*=\s*\"[^\"]*" + name + r"\.rs\"\]")
    if not any(p in sources and named.search(read(p)) for p in places):
        faults.append(f"{path}: no mod line in {' or '.join(places)}")

leftovers = {
    r"\b(todo|unimplemented|dbg)!\s*[(\[{]": "a leftover macro",
    r"\b(TODO|FIXME|XXX)\b": "a leftover note",
    r"(?<![\w.])/(home|Users|root)/(?!mq\b)\w+": "a path of one machine", # /home/mq is the example of the tests
}
for path in files:
    if not path.endswith((".rs", ".java", ".go", ".sh", ".toml", ".md", ".xml", ".conf", ".py")) or path == "test.sh":
        continue
    for number, line in enumerate(read(path).splitlines(), 1):
        for pattern, what in leftovers.items():
            if re.search(pattern, line):
                faults.append(f"{path}:{number}: {what}: {line.strip()[:100]}")
    if path.endswith(".rs") and path in sources and len(read(path).splitlines()) > 1000:
        faults.append(f"{path}: over 1000 lines")

for fault in faults:
    print(fault)
print(f"{len(sources)} sources and {len(files)} files looked at, {len(faults)} faults")
sys.exit(bool(faults))
PY
}

# The store on the simulated disk, crashed at each of its I/O operations; SEEDS=n or MINUTES=n for another length than CI's.
campaign() { cargo test -p uringmq-store --features seeded-bugs --test campaign --quiet -- --nocapture "$@"; }

interop() { bench-harness/interop/run --target ours "$@"; }

stores() { bench-harness/interop/run-stores; }

# Kills the broker and its clients at random; all that was acknowledged is consumed. storm is CI's short one.
storm() { bench-harness/interop/run-storm --seconds "${1:-45}"; }

pairs() { bench-harness/interop/run-pairs; }

migration() { bench-harness/interop/run-migration; }

two_masters() { bench-harness/interop/run-two-masters; }

dledger() { bench-harness/interop/run-dledger; }

# Apache's brokers under our controllers, then one of ours beside one of Apache's, either first.
controller() {
  local brokers
  for brokers in apache,apache ours,apache apache,ours; do
    bench-harness/interop/run-controller --brokers "$brokers" || return
  done
}

# kill_loop FLUSH_DISK_TYPE ROUNDS [chaos]: kill -9 under load and restart, over and over on one store; everything acknowledged must be
# there. With chaos, the log is damaged behind the last acknowledged record before each restart.
kill_loop() (
  HERE=$PWD/bench-harness/interop REPO=$PWD TARGET=ours SHARDS=2 FLUSH=$1
  . "$HERE/target.sh"
  bin=${URINGMQ_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/debug/uringmq}
  dir=$LOGS/kill-$1
  mkdir -p "$dir/store"
  read -r namesrv_port broker_port <<<"$(free_ports)"
  write_conf "$dir/broker.conf" "$dir/store" "$namesrv_port" "$broker_port"
  echo flushConsumerOffsetInterval=100 >>"$dir/broker.conf" # two saves before most kills, for what they saved is judged
  what=(kill)
  if [ "${3:-}" = chaos ]; then what=(chaos --store "$dir/store" --min-ms 100 --max-ms 800); fi
  if timeout 900 "$bin" bench "${what[@]}" --start "$bin standalone -c $dir/broker.conf" --broker "127.0.0.1:$broker_port" --rounds "$2" \
    && "$bin" store check "$dir/store"; then
    rm -rf "$dir"
    echo "1 passed, 0 failed"
  else
    echo "0 passed, 1 failed"
    return 1
  fi
)

# cluster SECONDS FAULTS: three brokers, three controllers and two NameServers in network namespaces, with faults by a seed that is told;
# a checker judges what clients saw and what the replicas have. On a violation the history stays. docs/reliability.md has more.
cluster() (
  bin=${URINGMQ_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/debug/uringmq}
  dir=${TMPDIR:-/tmp}/uringmq-cluster
  for tool in ip tc; do
    if ! command -v "$tool" >/dev/null; then
      echo "$tool is missing: './test.sh tools' installs iproute2"
      return 1
    fi
  done
  if as_root timeout $(($1 + 600)) "$bin" bench cluster --dir "$dir" --seconds "$1" --nemesis "$2" ${SEED:+--seed "$SEED"}; then
    as_root rm -rf "$dir"
    echo "1 passed, 0 failed"
  else
    echo "what it left: $dir"
    echo "0 passed, 1 failed"
    return 1
  fi
)

# Two runs: the choice of Java classes would be taken for one of Go tests.
interop_3() { interop --shards 3 --sync --only java5 --tests "$SHORT" && interop --shards 3 --sync --only go; }

# The classes that touch sends, pulls, groups, locks and retries: for other numbers of shards than the full run's.
SHORT='SendTest,PushTest,OrderlyTest,RetryTest,PullTest'

run_stage() {
  case $1 in
    tools) stage tools tools ;;
    format) stage format cargo fmt --all --check ;;
    clippy) stage clippy cargo clippy --workspace --all-targets --features uringmq-store/seeded-bugs --quiet -- -D warnings ;;
    tree) stage tree tree ;;
    unit) stage unit cargo test --workspace --features uringmq-store/sim --quiet ;;
    campaign) stage campaign campaign ;;
    campaign-30) MINUTES=30 stage campaign-30 campaign no_crash ;;
    build) stage build cargo build --workspace --bins ;;
    stores) stage stores stores ;;
    pairs) stage pairs pairs ;;
    migration) stage migration migration ;;
    dledger) stage dledger dledger ;;
    two-masters) stage two-masters two_masters ;;
    controller) stage controller controller ;;
    storm) stage storm storm ;;
    storm-10) stage storm-10 storm 600 ;;
    interop) stage interop interop --shards 2 ;;
    interop-1) stage interop-1 interop --shards 1 --split --only java5 --tests "$SHORT" ;;
    interop-3) stage interop-3 interop_3 ;;
    kill) stage kill kill_loop ASYNC_FLUSH 4 ;;
    kill-sync) stage kill-sync kill_loop SYNC_FLUSH 4 ;;
    kill-20) stage kill-20 kill_loop ASYNC_FLUSH 20 ;;
    kill-sync-20) stage kill-sync-20 kill_loop SYNC_FLUSH 20 ;;
    chaos) stage chaos kill_loop ASYNC_FLUSH 8 chaos ;;
    chaos-200) stage chaos-200 kill_loop ASYNC_FLUSH 200 chaos ;;
    cluster) stage cluster cluster 45 kill,pause,partition,kill ;;
    cluster-30) stage cluster-30 cluster 1800 kill,kill,pause,partition,one-way,slow,disk-full,slow-disk ;;
    differential) stage differential bench-harness/interop/run-differential ;;
    big) stage big interop --shards 2 --only big --big 1000000 ;;
    *)
      echo "unknown stage '$1'; stages: ${CI_STAGES[*]} ${LONG_STAGES[*]}"
      echo "0 passed, 1 failed"
      exit 2
      ;;
  esac
}

CI_STAGES=(tools format clippy tree unit campaign build kill kill-sync chaos stores interop interop-1 interop-3 pairs migration two-masters dledger controller cluster storm)
LONG_STAGES=(campaign-30 kill-20 kill-sync-20 chaos-200 storm-10 cluster-30 differential big)

case ${1:-} in
  '') STAGES=("${CI_STAGES[@]}") ;;
  long) STAGES=("${CI_STAGES[@]}" "${LONG_STAGES[@]}") ;;
  *) STAGES=("$@") ;;
esac
for name in "${STAGES[@]}"; do run_stage "$name"; done
echo "all stages done in $SECONDS s"
echo "$PASSED passed, $FAILED failed"
