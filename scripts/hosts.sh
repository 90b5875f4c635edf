#!/usr/bin/env bash
# scripts/hosts.sh [--hosts N] [--rate RATE] [--latency TIME] [--loss PERCENT] [--tcp NAME] COMMAND...
#
# Tries programs on a slow network with one machine. Makes N hosts (4 when not given) that are joined
# by a switch, limits what each host sends and receives to RATE (500mbit when not given), and runs
# COMMAND on the first host. Everything is gone when COMMAND ends.
#
#   scripts/hosts.sh mpirun PROGRAM...          runs PROGRAM with one rank on each host
#   scripts/hosts.sh --rate 100mbit mpirun build/release/gossamer bench step --engine gossip,allreduce
#   scripts/hosts.sh each COMMAND...            runs COMMAND on every host at the same time, where GOSSAMER_HOST is
#                                               the host's number; returns the first code that is not 0
#   scripts/hosts.sh bash                       a shell; in it, `scripts/hosts.sh mpirun PROGRAM...`
#                                               may be called several times
#   scripts/hosts.sh link 2 down                in that shell: unplugs host 2; `up` plugs it in again
#   scripts/hosts.sh link 2 50mbit              in that shell: changes the rate of host 2; not for far hosts
#   scripts/hosts.sh --rate 200mbit --latency 50ms --loss 0.1% mpirun PROGRAM...          far hosts
#
# The hosts are Linux network namespaces with host names of their own. They share the machine's
# processors and files. RATE is a number with kbit, mbit or gbit. NAME is the congestion control of
# TCP between the hosts (cubic when not given, whatever the machine itself uses), one of
# /proc/sys/net/ipv4/tcp_available_congestion_control. `hosts.sh mpirun` starts
# scripts/launch/mpirun.sh, and takes no options of mpirun. MPIEXEC names the launcher; Open MPI 4 and
# 5 and MPICH work. Needs ip and tc (Debian's iproute2), and root or a kernel that lets users make
# namespaces. Exit code 77: this machine cannot make such hosts. Ctrl-C and SIGTERM kill everything at
# once.
#
# --latency or --loss makes far hosts. TIME is the round trip between any two hosts, half of it each
# way: a number with us, ms or s (0 when not given). PERCENT is the part of all packets that is lost at
# random, as 0.1% (0 when not given); the seed is the same in every run. A process carries every packet
# of 1500 bytes; keep the rates of all hosts together at 1 Gbit/s or below. Every host has a queue for
# what it sends and one for what it receives. As in a router, a queue holds what passes in a round trip,
# and at least in 50 ms, and drops the rest. TCP's buffers on the hosts may grow to four times what the
# round trip and the queues hold; a warning says where the kernel does not allow it. Buffers that a
# program sets itself stay within /proc/sys/net/core/rmem_max and wmem_max.
#
# Far hosts need /dev/net/tun and a C++ compiler (CXX names it, else c++): the first call compiles
# test/hosts/far_network.cpp into build/hosts. Nothing else of the project must be built. An ordinary
# user's packets are late while programs compute.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
show_help "$@"

script=$root/scripts/hosts.sh
far_network=$root/build/hosts/far_network
rate_pattern='[0-9]+(\.[0-9]+)?[kmg]bit'
# Debian keeps tc where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

need_program() {
  [[ -n $2 && $2 != -* ]] || die "hosts.sh: after $1 comes a program, and no option of $1"
}

# 200mbit in bit/s, 50ms in ns.
in_base_units() {
  awk -v text="$1" 'BEGIN {
    factor["kbit"] = factor["us"] = 1e3; factor["mbit"] = factor["ms"] = 1e6; factor["gbit"] = factor["s"] = 1e9
    match(text, /[a-z]+$/)
    printf "%.0f\n", substr(text, 1, RSTART - 1) * factor[substr(text, RSTART)]
  }'
}

# ---- inside: hosts exist -----------------------------------------------------------------------

# plug_in HOST: takes its link up.
plug_in() {
  ip -n "host$1" link set eth0 up
  # A link that goes down loses its routes, and gets one without congctl back.
  ip -n "host$1" route change 10.77.0.0/24 dev eth0 src "10.77.0.$(($1 + 1))" congctl "$(</run/tcp)"
}

# at_switch COMMAND...: runs it where the switch is, which is where this script's first process is.
at_switch() { nsenter --net=/proc/1/ns/net "$@"; }

# set_rate HOST RATE add|change: limits what a near host sends and receives.
set_rate() {
  tc -n "host$1" qdisc "$3" dev eth0 root tbf rate "$2" burst 256kb latency 50ms
  # What leaves a port of the switch is what its host receives.
  at_switch tc qdisc "$3" dev "port$1" root tbf rate "$2" burst 256kb latency 50ms
}

# change_link HOST up|down|RATE
change_link() {
  case $2 in
    up) plug_in "$1" ;;
    down) ip -n "host$1" link set eth0 down ;;
    *)
      at_switch ip link show "port$1" &>/dev/null || die "hosts.sh: the rates of far hosts (--latency, --loss) do not change"
      set_rate "$1" "$2" change
      ;;
  esac
}

# Makes the device eth0 of every host, joined by a switch in this namespace.
join_near_hosts() {
  local i
  ip link add switch type bridge
  ip link set switch up
  for ((i = 0; i < num_hosts; ++i)); do
    ip link add "port$i" type veth peer name eth0 netns "host$i"
    ip link set "port$i" master switch up
    set_rate "$i" "$rate" add
  done
}

# allow_buffers HOST BYTES: lets the buffers of TCP on a host grow to BYTES.
allow_buffers() {
  # shellcheck disable=SC2016
  nsenter --net="/run/netns/host$1" bash -c '
    for name in tcp_rmem tcp_wmem; do
      read -r least default most </proc/sys/net/ipv4/$name
      ((most >= $1)) || echo "$least $default $1" >/proc/sys/net/ipv4/$name || exit 1
    done' allow_buffers "$2"
}

# Makes the device eth0 of every host, joined by a process that stays.
join_far_hosts() {
  local i bits round_trip buffers
  bits=$(in_base_units "$rate")
  round_trip=$(in_base_units "$latency")
  "$far_network" "$num_hosts" "$bits" "$round_trip" "${loss%\%}"
  # What is on its way and in the queues, four times: the kernel counts more than a packet's bytes. The
  # kernel takes no more than 31 bits.
  buffers=$(awk -v bits="$bits" -v ns="$round_trip" 'BEGIN {
    bytes = 4 * bits / 8 * (ns + (ns > 5e7 ? ns : 5e7)) / 1e9
    printf "%.0f\n", bytes < 2^30 ? bytes : 2^30
  }')
  for ((i = 0; i < num_hosts; ++i)); do
    # A tun device drops what does not fit into its own queue. Here the links' queues shall do that.
    ip link set "far$i" txqueuelen 10000 netns "host$i" name eth0
    allow_buffers "$i" "$buffers" || complain "hosts.sh: warning: this kernel keeps the buffers of TCP small"
  done
}

# Sets up the namespace this script runs in, and those of the hosts.
make_hosts() {
  local i
  mount -t tmpfs tmpfs /run
  mkdir /run/netns
  ip link set lo up
  echo "$tcp" >/run/tcp
  echo '127.0.0.1 localhost' >/run/etc_hosts
  for ((i = 0; i < num_hosts; ++i)); do
    ip netns add "host$i"
    ip -n "host$i" link set lo up
    echo "10.77.0.$((i + 1)) host$i" >>/run/etc_hosts
  done
  if [[ -n $latency ]]; then join_far_hosts; else join_near_hosts; fi
  for ((i = 0; i < num_hosts; ++i)); do
    ip -n "host$i" addr add "10.77.0.$((i + 1))/24" dev eth0
    plug_in "$i"
  done
  mount --bind /run/etc_hosts /etc/hosts
  # A launcher calls this in place of ssh: agent [options] HOST COMMAND, which is text for a shell.
  cat >/run/agent <<END
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
host=\$1
shift
exec nsenter --net="/run/netns/\$host" unshare --uts bash -c 'hostname "\$0" && eval "\$*"' "\$host" "\$@"
END
  chmod +x /run/agent
}

# Runs a command on the first host.
on_first_host() { /run/agent host0 exec "${@@Q}"; }

# mpirun_on_hosts PROGRAM ARGUMENTS...
mpirun_on_hosts() {
  local launcher=${MPIEXEC:-mpirun} hosts version
  hosts=$(seq -s, -f 'host%g' 0 $((GOSSAMER_HOSTS - 1)))
  # shellcheck source=scripts/mpi_env.sh
  source "$root/scripts/mpi_env.sh"
  version=$("$launcher" --version 2>&1 || true)
  if [[ ${version,,} == *hydra* || ${version,,} == *mpich* ]]; then
    on_first_host "$root/scripts/launch/mpirun.sh" -launcher ssh -launcher-exec /run/agent -iface eth0 -ppn 1 \
      -hosts "$hosts" -n "$GOSSAMER_HOSTS" "$@"
    return
  fi
  # For Open MPI 4 (OMPI_MCA_plm..., oob) and the launcher of Open MPI 5 (PRTE_MCA_...).
  export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent=/run/agent OMPI_MCA_plm_rsh_no_tree_spawn=1
  export OMPI_MCA_oob_tcp_if_include=eth0 OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self
  export OMPI_MCA_btl_tcp_if_include=eth0
  # Hosts of another call have the same names, and the end of one job would remove the folder of the other in /tmp.
  export OMPI_MCA_orte_tmpdir_base=/run
  export PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent=/run/agent PRTE_MCA_plm_ssh_no_tree_spawn=1
  export PRTE_MCA_prte_if_include=eth0
  on_first_host "$root/scripts/launch/mpirun.sh" --host "${hosts//,/:1,}:1" --map-by ppr:1:node -n "$GOSSAMER_HOSTS" "$@"
}

# each_host COMMAND...
each_host() {
  local i jobs=() code=0 last
  for ((i = 0; i < GOSSAMER_HOSTS; ++i)); do
    /run/agent "host$i" "export GOSSAMER_HOST=$i; exec ${*@Q}" &
    jobs+=($!)
  done
  for i in "${jobs[@]}"; do
    last=0
    wait "$i" || last=$?
    ((code)) || code=$last
  done
  return "$code"
}

# run_command COMMAND...: mpirun and each are ours.
run_command() {
  case $1 in
    mpirun) mpirun_on_hosts "${@:2}" ;;
    each) each_host "${@:2}" ;;
    *) on_first_host "$@" ;;
  esac
}

if [[ ${1:-} == --inside ]]; then
  num_hosts=$2 rate=$3 tcp=$4 latency=$5 loss=$6
  shift 6
  set -E
  trap 'complain "hosts.sh: this machine cannot make hosts: $BASH_COMMAND"; exit 77' ERR
  make_hosts
  trap - ERR
  export GOSSAMER_HOSTS=$num_hosts
  run_command "$@"
  exit
fi
if [[ -n ${GOSSAMER_HOSTS:-} ]]; then
  if [[ ${1:-} == link ]]; then
    [[ ${2:-} =~ ^[0-9]+$ && -e /run/netns/host$2 && ${3:-} =~ ^(up|down|$rate_pattern)$ &&
      ! $3 =~ ^[0.]+[a-z] ]] ||
      die "hosts.sh: type: $script link HOST up|down|RATE, HOST from 0 to $((GOSSAMER_HOSTS - 1))"
    change_link "$2" "$3"
    exit
  fi
  [[ ${1:-} =~ ^(mpirun|each)$ ]] ||
    die "hosts.sh: on a host, type: $script mpirun PROGRAM..., each COMMAND..., or link HOST up|down|RATE"
  need_program "$1" "${2:-}"
  run_command "$@"
  exit
fi

# ---- outside -----------------------------------------------------------------------------------

# Compiles the program of far hosts where there is none, or an old one.
make_far_network() {
  local compiler=${CXX:-c++}
  if [[ -e $far_network && -z $(find "$root/test/hosts" "$root/base/text.hpp" -name '*.[ch]pp' -newer "$far_network") ]]; then
    return
  fi
  if ! has "$compiler"; then
    complain "hosts.sh: far hosts need a C++ compiler. Type: apt-get install g++"
    exit 77
  fi
  mkdir -p "${far_network%/*}"
  # Another call may run the old program, or compile at the same time.
  "$compiler" -std=c++20 -O2 -Wall -Wextra -I "$root" -o "$far_network.$$" "$root/test/hosts/far_network.cpp" ||
    die "hosts.sh: $compiler cannot compile test/hosts/far_network.cpp"
  mv -f "$far_network.$$" "$far_network"
}

num_hosts=4 rate=500mbit latency='' loss=''
known_tcp=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
# Every Linux has reno.
[[ " $known_tcp " == *" cubic "* ]] && tcp=cubic || tcp=reno
while [[ ${1:-} == --* ]]; do
  case $1 in
    --hosts | --rate | --latency | --loss | --tcp) [[ -n ${2:-} ]] || die "hosts.sh: $1 needs a value" ;;&
    --hosts) num_hosts=$2 ;;
    --rate) rate=$2 ;;
    --latency) latency=$2 ;;
    --loss) loss=$2 ;;
    --tcp) tcp=$2 ;;
    *) die "hosts.sh: unknown option $1, allowed: --hosts, --rate, --latency, --loss, --tcp; --help explains them" ;;
  esac
  shift 2
done
[[ $num_hosts =~ ^[1-9][0-9]?$ ]] || die "hosts.sh: --hosts $num_hosts, allowed: 1 to 99"
[[ $rate =~ ^$rate_pattern$ && $rate =~ [1-9] ]] ||
  die "hosts.sh: --rate $rate, allowed: a number above 0 with kbit, mbit or gbit, as 500mbit"
if [[ -n $latency || -n $loss ]]; then
  latency=${latency:-0ms} loss=${loss:-0%}
  if [[ ! $latency =~ ^[0-9]{1,9}(\.[0-9]+)?(us|ms|s)$ ]] || (($(in_base_units "$latency") > 10 ** 10)); then
    die "hosts.sh: --latency $latency, allowed: a number with us, ms or s, as 50ms; at most 10s"
  fi
  [[ $loss =~ ^[0-9]{1,2}(\.[0-9]+)?%$ ]] || die "hosts.sh: --loss $loss, allowed: 0% to below 100%, as 0.1%"
fi
[[ " $known_tcp " == *" $tcp "* ]] || die "hosts.sh: --tcp $tcp, this kernel has: $known_tcp"
(($# > 0)) || die "hosts.sh: which command? See scripts/hosts.sh --help"
[[ ! $1 =~ ^(mpirun|each)$ ]] || need_program "$1" "${2:-}"
[[ $1 != link ]] || die "hosts.sh: link works on a host, in the shell of: $script bash"
if ! has ip || ! has tc; then
  complain "hosts.sh: ip or tc is missing. Type: apt-get install iproute2"
  exit 77
fi
[[ -z $latency ]] || make_far_network

# A process namespace of its own ends whatever COMMAND leaves behind.
namespaces=(unshare --mount --net --uts --pid --fork --kill-child --mount-proc)
[[ $(id -u) == 0 ]] || namespaces+=(--map-root-user)
if ! refusal=$("${namespaces[@]}" true 2>&1); then
  complain "hosts.sh: this machine does not let $(id -un) make namespaces: $refusal"
  exit 77
fi
# unshare itself does not react to signals. The end of unshare ends everything inside.
"${namespaces[@]}" "$script" --inside "$num_hosts" "$rate" "$tcp" "$latency" "$loss" "$@" <&0 &
job=$!
trap 'kill -KILL "$job"; exit 130' INT
trap 'kill -KILL "$job"; exit 143' TERM HUP
wait "$job"
