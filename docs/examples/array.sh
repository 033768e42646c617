#!/usr/bin/env bash
# A Slurm array, one job a GPU and one results file a job:  sbatch --array=0-7 docs/examples/array.sh
# Each job measures the GPU that Slurm gave it. With as many jobs as GPUs, all at once, each GPU is measured once; one
# that was already measured today is left. Compare and gate only within one UUID: GPUs of one model differ by percents.
#SBATCH --job-name=rooftest
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --output=rooftest-%A_%a.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

# Slurm names the GPU by a number that means another GPU on another node, and after each boot. Its UUID does not, and
# is set before Python starts: once CUDA has looked at the variable it is too late.
uuid=$(nvidia-smi --id="${CUDA_VISIBLE_DEVICES:?no GPU: ask Slurm for --gres=gpu:1}" --query-gpu=uuid --format=csv,noheader)
case $uuid in
  *$'\n'*) echo "array.sh: more than one GPU was given; ask for one, --gres=gpu:1" >&2; exit 4 ;;
  GPU-*) export CUDA_VISIBLE_DEVICES=$uuid ;;
  *) echo "array.sh: nvidia-smi gave no UUID but: $uuid" >&2; exit 4 ;;
esac

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

out=runs/$(date -u +%F)
mkdir -p "$out"
if [ -e "$out/$uuid.json" ]; then
  echo "array.sh: $out/$uuid.json is there already: Slurm gave this GPU to two jobs, one after the other" >&2
  exit 10
fi
code=0
pytest --pyargs rooftest.suites -k "speed$only" --roof-workloads='*' --roof-results="$out/$uuid.json" "${rest[@]}" || code=$?
exit "$code"
