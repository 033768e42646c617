#!/usr/bin/env bash
# Everything once a night on one GPU, kept by date. In the crontab of a user who may use the GPU:
#   17 2 * * * cd /home/me/kernels && PATH=$PWD/.venv/bin:$PATH docs/examples/nightly.sh >> nightly.log 2>&1
# Arguments go to every run of pytest: -k step8, say, for one kernel alone. WORKERS (default 8; 0 for none) needs pytest-xdist.
set -euo pipefail
exec 9> .nightly.lock
flock --nonblock 9 || { echo "nightly.sh: the run before is still going: this one is left out" >&2; exit 10; }

# pytest takes the last -k alone: one among the arguments is joined with ours.
only='' rest=()
while [ $# -gt 0 ]; do
  case $1 in
    -k) only=" and (${2:?-k needs an expression})" && shift ;;
    -k*) only=${1#-k} && only=" and (${only#=})" ;;
    *) rest+=("$1") ;;
  esac
  shift
done

out=nightly/$(date -u +%F)
mkdir -p "$out" results "$HOME/rooftest-spread"
# Where the gate of a pull request finds it, which has a checkout of its own.
[ -e results/spread ] || ln -s "$HOME/rooftest-spread" results/spread
worst=0
run() { # a name for the files, then what is asked; a run that fails does not keep the next from its turn
  local name=$1 code=0
  shift
  pytest --pyargs rooftest.suites --roof-results="$out/$name.json" --junitxml="$out/$name.xml" "$@" || code=$?
  case $code in
    0 | 5) ;; # 5: nothing of the kind in these suites
    10) [ "$worst" != 0 ] || worst=10 ;; # undecided, which is less than a failure
    *) [ "$worst" != 0 ] && [ "$worst" != 10 ] || worst=$code ;;
  esac
}

run right -n "${WORKERS:-8}" -k "not speed$only" --roof-profile=nightly --roof-report="$out/right.md" "${rest[@]}"
run fast -k "speed$only" --roof-workloads='*' --roof-report="$out/fast.csv" "${rest[@]}"
# Against itself: how much two measurements of the same code differ on this GPU, which is what the gate judges by.
run spread -k "speed$only" --roof-workloads='*' --roof-against=HEAD --roof-pairs=3 "${rest[@]}"
# On a machine with the extra [report]: what the nights say together, and a page of this one.
found=$(find "$out" -name '*.json')
if [ -n "$found" ] && python -c "import duckdb, jinja2" 2> /dev/null; then
  for each in $found; do
    rooftest push nightly/store "$each"
  done
  rooftest history nightly/store --alarms=1 > "$out/history.txt" || [ "$worst" != 0 ] || worst=1
  rooftest report $found --store nightly/store -o "$out/page.html" || true
fi
exit "$worst"
