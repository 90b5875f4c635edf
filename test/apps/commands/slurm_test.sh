#!/usr/bin/env bash
# slurm_test.sh PROGRAM: trains under a SLURM of two nodes that is set up as Debian's is: srun by itself
# tells the ranks nothing of one another. Needs root, and Debian's slurm-wlm and munge. Runs inside
# `scripts/hosts.sh --hosts 2`, which ends the SLURM. Exit code 77: skipped.
set -uo pipefail
program=$1
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
PATH=$PATH:/usr/sbin

skip() {
  echo "slurm_test: skipped: $*"
  exit 77
}
fail() {
  printf 'slurm_test: %s\n' "$*" >&2
  tail -n 30 "$folder"/*.out "$folder"/err "$folder"/slurm*.log >&2
  exit 1
}
# wait_for WHAT COMMAND...
wait_for() {
  local what=$1
  for _ in {1..300}; do
    "${@:2}" >/dev/null 2>&1 && return
    sleep 0.2
  done
  fail "waited too long for $what"
}

for needed in slurmctld slurmd srun sbatch munged; do
  command -v "$needed" >/dev/null || skip "there is no $needed (Debian's slurm-wlm, munge)"
done
read -r _ outside _ </proc/self/uid_map
[[ $outside == 0 ]] || skip "SLURM needs root"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder" || exit 1
mkdir state node
mkdir -m 700 munge
head -c 64 /dev/urandom >munge/key
chmod 600 munge/key
munged --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" --log-file="$folder/munge/log" ||
  fail "munged does not start"
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=host0
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/node/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/node/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=host[0-1] CPUs=2 State=UNKNOWN
PartitionName=usual Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
END
# By default it is /tmp, where a job of the same number may have left something.
echo "PMIxCliTmpDirBase=$folder/node" >mpi.conf
export SLURM_CONF=$folder/slurm.conf
slurmctld || fail "slurmctld does not start"
for host in host0 host1; do
  # The nodes share all files but those of `node`.
  /run/agent "$host" "unshare --mount bash -c 'mount -t tmpfs node node && mkdir node/spool && slurmd'" ||
    fail "slurmd of $host does not start"
done
are_idle() { [[ $(sinfo -h -p usual -o '%t %D') == 'idle 2' ]]; }
wait_for "the nodes" are_idle

# shellcheck source=scripts/mpi_env.sh
source "$root/scripts/mpi_env.sh"
export GOSSAMER=$program
cat >run.yaml <<END
run: {steps: 1000000000, checkpoint_every: 500}
model: {name: mlp, hidden: 16}
data: {name: glyphs, train_size: 256, val_size: 64, batch_size: 8}
log: {every: 50}
END

srun -n 2 "$program" train run.yaml run.steps=4 >alone.out 2>err
code=$?
((code == 2)) || fail "two worlds of one rank end with $code"
grep -q 'srun --mpi=pmix' err || fail "no advice for ranks that do not meet"
[[ ! -e runs ]] || fail "ranks that do not meet have a folder"

# Without PMIx, ranks meet by what srun tells each of them.
srun -n 2 "$program" train run.yaml --rendezvous slurm run.steps=4 run.output_dir=asked >asked.out 2>&1 ||
  fail "ranks that meet by --rendezvous slurm end with $?"
grep -q ' 2 ranks, 4 steps, into asked' asked.out || fail "--rendezvous slurm has no world of two"
srun -n 2 "$program" train run.yaml comm.backend=tcp run.steps=4 run.output_dir=tcp >tcp.out 2>&1 ||
  fail "ranks with comm.backend: tcp end with $?"
grep -q ' 2 ranks, 4 steps, into tcp' tcp.out || fail "comm.backend: tcp has no world of two"

# Ranks that are threads of one task; a short trial that is finished.
srun -n 1 "$program" train run.yaml --ranks 2 run.steps=4 run.checkpoint_every=never >trial.out 2>err ||
  fail "ranks of one task end with $?"

cat >mpirun.sbatch <<END
#!/usr/bin/env bash
mpirun -n 2 "\$GOSSAMER" train run.yaml run.steps=4 run.output_dir=mpirun
END
sbatch -n 2 -o mpirun.out mpirun.sbatch >/dev/null 2>err || fail "sbatch ends with $?"
wait_for "mpirun in a batch job" grep -q 'everything about this run is in mpirun' mpirun.out
grep -q ' 2 ranks, 4 steps, into mpirun' mpirun.out || fail "mpirun in a batch job has no world of two"

# run_job FOLDER SIGNALLER ARGUMENTS...: a job of both nodes by the script, whose run is in FOLDER. SIGNALLER
# makes SLURM signal the job, which then goes back into the queue and continues.
run_job() {
  local folder_of_run=$1 signaller=$2 output job step
  output=${folder_of_run##*/}.out
  shift 2
  job=$(sbatch --parsable --nodes=2 -o "$output" "$root/scripts/launch/slurm.sbatch" run.yaml "$@") ||
    fail "sbatch of $folder_of_run ends with $?"
  has_saved() { compgen -G "$folder_of_run/checkpoints/step-*"; }
  wait_for "a checkpoint in $folder_of_run" has_saved
  grep -q " 2 ranks, .* steps, into $folder_of_run\$" "$output" || fail "the job has no world of two in $folder_of_run"
  "$signaller" "$job"
  is_pending() { [[ $(squeue -h -j "$job" -o %t) == PD ]]; }
  wait_for "the job of $folder_of_run in the queue" is_pending
  step=$(sed -n 's/^stopped by SIGTERM after step \([0-9]*\) of .*; the checkpoint is saved; .*/\1/p' "$output")
  [[ -n $step ]] || fail "the run in $folder_of_run was not stopped with a checkpoint"
  # SLURM would wait for two minutes. It starts no job in the second in which it has ended the job's last run.
  sleep 2
  scontrol update JobId="$job" StartTime=now TimeLimit=60
  wait_for "the job of $folder_of_run to go on" \
    grep -q "continues from $folder_of_run/checkpoints/$(printf 'step-%09d' "$step")" "$output"
  scancel --full "$job"
  wait_for "the nodes" are_idle
}
# Fewer than the script's 120 seconds are then left. SLURM looks every 30 seconds.
shorten() { scontrol update JobId="$1" TimeLimit=2; }
preempt() { srun -p urgent --nodes=2 --exclusive true; }

# Through PMIx, and without MPI. The finished trial has the folder runs/run.
run_job runs/run-2 shorten
export GOSSAMER_SECRET_FILE=$folder/secret
"$program" secret -o "$GOSSAMER_SECRET_FILE" >/dev/null || fail "gossamer secret ends with $?"
run_job preempted preempt --rendezvous slurm run.output_dir=preempted
