# Starts and stops the broker that the interop suites judge. Sourced by `run`; knows nothing of the suites.
#
# Sets NAMESRV and BROKER (host:port) and BROKER_NAME, CLUSTER. Every wait is bounded; processes are ended by their pid alone.

CLUSTER=DefaultCluster
BROKER_NAME=broker-a
TARGET_PIDS=()
READY_SECONDS=${READY_SECONDS:-60}

# Prints a NameServer port and a broker port. The broker's neighbours are free too: Apache binds port-2 and port+1 beside it. Neither is
# one that the kernel gives to outgoing connections: a client that knocks while a broker is down could be given its very port.
free_ports() {
  python3 - <<'PY'
import random
import socket

with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
    end = int(f.read().split()[0])
if end <= 20000:
    end = 65535

def bind(port):
    s = socket.socket()
    s.bind(("127.0.0.1", port))
    return s

while True:
    namesrv, broker = random.sample(range(10000, end - 1), 2)
    held = []
    try:
        held += [bind(port) for port in (namesrv, broker - 2, broker - 1, broker, broker + 1)]
    except OSError:
        continue
    else:
        print(namesrv, broker)
        break
    finally:
        for s in held:
            s.close()
PY
}

# write_conf FILE STORE NAMESRV_PORT BROKER_PORT: an Apache broker.conf with the lines of MORE_CONF; our own keys are added for our target only.
write_conf() {
  cat >"$1" <<EOF
brokerClusterName=$CLUSTER
brokerName=$BROKER_NAME
brokerId=0
brokerIP1=127.0.0.1
namesrvAddr=127.0.0.1:$3
listenPort=$4
storePathRootDir=$2
storePathCommitLog=$2/commitlog
brokerRole=ASYNC_MASTER
flushDiskType=$FLUSH
autoCreateTopicEnable=true
cleanFileForciblyEnable=false
mappedFileSizeCommitLog=16777216
enablePropertyFilter=true
recallMessageEnable=true
transactionTimeOut=2000
transactionCheckInterval=3000
EOF
  if [ -n "${MORE_CONF:-}" ]; then printf '%s\n' "$MORE_CONF" >>"$1"; fi
  case $TARGET in
    ours) echo "shards=$SHARDS" >>"$1" ;;
    # Clients and broker share few cores here; at its default of 200 ms Apache refuses sends that waited for the machine.
    apache) echo "waitTimeMillsInSendQueue=10000" >>"$1" ;;
  esac
}

# wait_for_line FILE PATTERN PID: until the log has the line, the process is gone (1) or the time is over (1).
wait_for_line() {
  local deadline=$((SECONDS + READY_SECONDS))
  until grep -q "$2" "$1" 2>/dev/null; do
    if ! kill -0 "$3" 2>/dev/null; then
      echo "server (pid $3) ended before it was ready" >&2
      return 1
    fi
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "no line '$2' within $READY_SECONDS s" >&2
      return 1
    fi
    sleep 0.1
  done
}

# launch LOG PATTERN COMMAND...: in the background, and wait until it serves.
launch() {
  local log=$1 pattern=$2
  shift 2
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  TARGET_PIDS+=("$pid")
  wait_for_line "$log" "$pattern" "$pid"
}

# start_target DIR: a fresh store under DIR; the servers' output goes to DIR/*.log.
start_target() {
  local dir=$1 namesrv_port broker_port
  read -r namesrv_port broker_port <<<"$(free_ports)"
  NAMESRV=127.0.0.1:$namesrv_port
  BROKER=127.0.0.1:$broker_port
  mkdir -p "$dir/store"
  write_conf "$dir/broker.conf" "$dir/store" "$namesrv_port" "$broker_port"
  case $TARGET in
    ours) start_ours "$dir" "$namesrv_port" ;;
    apache) start_apache "$dir" "$namesrv_port" ;;
    *) echo "unknown target '$TARGET'" >&2; return 2 ;;
  esac
}

# Prints where our binary is.
our_binary() {
  local bin=${URINGMQ_BIN:-${CARGO_TARGET_DIR:-$REPO/target}/debug/uringmq}
  if [ ! -x "$bin" ]; then
    echo "no binary at $bin: build it or name one with URINGMQ_BIN" >&2
    return 1
  fi
  echo "$bin"
}

# Prints the directory of Apache's jars, fetched when they are not there yet.
apache_lib() {
  local lib=${APACHE_LIB:-$CACHE/apache-lib}
  if ! ls "$lib"/rocketmq-broker-*.jar >/dev/null 2>&1; then
    mvn -q -B -f "$HERE/apache/pom.xml" dependency:copy-dependencies -DoutputDirectory="$lib" >&2 || return 1
  fi
  echo "$lib"
}

start_ours() {
  local bin
  bin=$(our_binary) || return 1
  if [ "$SPLIT" = yes ]; then
    printf 'listenPort=%s\n' "$2" >"$1/namesrv.conf"
    launch "$1/namesrv.log" '^uringmq ready' "$bin" namesrv -c "$1/namesrv.conf" || return 1
    launch "$1/broker.log" '^uringmq ready' "$bin" broker -c "$1/broker.conf" -n "$NAMESRV"
  else
    launch "$1/broker.log" '^uringmq ready' "$bin" standalone -c "$1/broker.conf"
  fi
}

start_apache() {
  local lib java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  lib=$(apache_lib) || return 1
  mkdir -p "$1/home"
  printf 'listenPort=%s\n' "$2" >"$1/namesrv.conf"
  local jvm=(--add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED
    --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED
    -Drocketmq.home.dir="$1/home" -Duser.home="$1/home" -cp "$lib/*")
  export ROCKETMQ_HOME=$1/home
  launch "$1/namesrv.log" 'boot success' "$java" -Xms256m -Xmx256m "${jvm[@]}" \
    org.apache.rocketmq.namesrv.NamesrvStartup -c "$1/namesrv.conf" || return 1
  launch "$1/broker.log" 'boot success' "$java" -Xms1g -Xmx1g -XX:MaxDirectMemorySize=2g "${jvm[@]}" \
    org.apache.rocketmq.broker.BrokerStartup -c "$1/broker.conf"
}

# stop_target: SIGTERM, patience, then SIGKILL. 1 if a server had to be killed or had already gone.
stop_target() {
  local pid bad=0 i patience=20
  if [ "$TARGET" = apache ]; then patience=90; fi
  for ((i = ${#TARGET_PIDS[@]} - 1; i >= 0; i--)); do
    pid=${TARGET_PIDS[i]}
    if ! kill -TERM "$pid" 2>/dev/null; then
      echo "server (pid $pid) was gone before it was stopped" >&2
      bad=1
      continue
    fi
    local deadline=$((SECONDS + patience))
    while kill -0 "$pid" 2>/dev/null; do
      if [ "$SECONDS" -ge "$deadline" ]; then
        echo "server (pid $pid) did not stop within $patience s" >&2
        kill -KILL "$pid" 2>/dev/null
        bad=1
        break
      fi
      sleep 0.1
    done
    wait "$pid" 2>/dev/null
  done
  TARGET_PIDS=()
  return $bad
}
