#!/usr/bin/env bash
# One evaluation on several hosts, without a scheduler. Change the three lines, and start it on every host:
#
#   launch/multinode/run.sh                     the run
#   launch/multinode/run.sh dist_eval.doctor    checks only: what would go wrong; also on every host
#
# The same file serves all hosts: each one finds itself in the list. README.md says more.
set -euo pipefail

HOSTS=(10.0.0.1 10.0.0.2)                        # 1. addresses of all hosts; they meet at the first one
RANKS=4                                          # 2. ranks on each host
OPTIONS=(--config run.yaml --output /shared/run) # 3. of the run; the output on a folder that all hosts share

MODULE=${1:-dist_eval} PORT=${PORT:-29500} LOGS=${LOGS:-logs} PYTHON=${PYTHON:-python}

place=$("$PYTHON" -m dist_eval.cluster.hosts "${HOSTS[@]}")
read -r node address interface head <<<"$place"
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export TORCH_CPP_LOG_LEVEL=${TORCH_CPP_LOG_LEVEL:-FATAL}

# in a session of its own: Ctrl-C is for this script alone
mkdir -p "$LOGS"
setsid "$PYTHON" -m dist_eval.cluster.agent --nnodes="${#HOSTS[@]}" --node-rank="$node" --nproc-per-node="$RANKS" \
    --master-addr="$head" --master-port="$PORT" --local-addr="$address" --max-restarts=0 \
    -m "$MODULE" "${OPTIONS[@]}" > >(exec tee -ia "$LOGS/$MODULE-host$node.log") 2>&1 &
torchrun=$!

# a first signal stops the run gracefully on all hosts, a second one ends it on this one
asked=0 stopping=
# shellcheck disable=SC2317,SC2329 # the traps call them
end() { kill -TERM "$torchrun" 2>/dev/null || true; }
# shellcheck disable=SC2317,SC2329
stop() {
    trap end HUP INT TERM USR1
    stopping=1
}
# again and again: a start that has just begun removes what asked an earlier one
ask() {
    if [[ $MODULE == dist_eval ]] && "$PYTHON" -m dist_eval.cluster.stop "${OPTIONS[@]}"; then
        asked=1
    elif [[ $asked == 0 ]]; then
        asked=1
        end # only once: torchrun would take it for a second signal
    fi
    sleep 2
}
trap stop HUP INT TERM USR1
trap end EXIT

while kill -0 "$torchrun" 2>/dev/null; do
    if [[ -n $stopping ]]; then ask; else wait "$torchrun" || true; fi # a trap ends a wait
done
status=0
wait "$torchrun" || status=$?
exit "$status"
