#!/usr/bin/env bash
# scripts/setup.sh [--dev] [--gpu]
#
# Installs what building, testing and running needs, and only what is missing:
#   - Debian packages, through apt (as root, or with sudo that asks for no password);
#   - .venv in the project's folder, with the packages of scripts/requirements.txt, and with --dev
#     those of scripts/requirements-dev.txt;
#   - LibTorch, inside .venv (scripts/requirements-libtorch.txt).
# --dev adds clang-format, clang-tidy, doxygen, git, Python's headers, iproute2 for scripts/hosts.sh, etcd, whose service it
# stops, and as root slurm-wlm and munge for the test under SLURM; --gpu adds the NVIDIA libraries that LibTorch needs on GPUs
# (scripts/requirements-gpu.txt).
#
# Your own tools count: a LibTorch named by LIBTORCH_ROOT or CMAKE_PREFIX_PATH, an MPI named by
# MPI_HOME or with mpicxx on PATH, and cmake, g++, ninja, ccache on PATH. PYTHON names the Python
# (3.11 to 3.14) that .venv is made with.
set -euo pipefail
exec </dev/null
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

venv=$root/.venv
dev=no
gpu=no
changed=no
failures=()

fail() { failures+=("$1"); }

for argument in "$@"; do
  show_help "$argument"
  case $argument in
    --dev) dev=yes ;;
    --gpu) gpu=yes ;;
    *)
      complain "setup.sh: I do not know '$argument'. Usage: scripts/setup.sh [--dev] [--gpu]"
      exit 2
      ;;
  esac
done

# ---- what is there -----------------------------------------------------------------------------

compiler_is_good() {
  local version
  if [[ -n ${CXX:-} ]]; then
    has "${CXX%% *}"
    return
  fi
  has g++ && version=$(g++ -dumpfullversion -dumpversion) && at_least 12 "$version"
}

cmake_is_good() {
  local version
  has cmake || return 1
  version=$(cmake --version 2>/dev/null) || return 1
  version=${version#cmake version }
  at_least 3.25 "${version%%[!0-9.]*}"
}

python_is_good() {
  "$1" -I -c '
import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

# Prints a Python that can make .venv. A pyenv shim may be first on PATH and yet not work.
find_python() {
  local candidate
  if [[ -n ${PYTHON:-} ]]; then
    python_is_good "$PYTHON" || return 1
    say "$PYTHON"
    return
  fi
  for candidate in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
    if has "$candidate" && python_is_good "$candidate"; then
      say "$candidate"
      return
    fi
  done
  return 1
}

# Whether the Python of .venv, or the one to make it with, has what modules in C++ are compiled with.
has_python_headers() {
  local python
  if venv_is_good; then
    python=$venv/bin/python
  else
    python=$(find_python) || return 1
  fi
  [[ -e $("$python" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]]
}

venv_is_good() { [[ -x $venv/bin/python ]] && "$venv/bin/python" -I -c '' >/dev/null 2>&1; }

has_header() {
  local entry entries
  IFS=: read -r -a entries <<<"${CMAKE_PREFIX_PATH:-}:/usr/local"
  if ! has dpkg-query; then
    entries+=(/usr)
  fi
  for entry in "${entries[@]}"; do
    if [[ -n $entry && -e $entry/include/$1 ]]; then
      return 0
    fi
  done
  return 1
}

# ---- Debian packages ---------------------------------------------------------------------------

# Sets `missing` to the packages that are to be installed.
find_missing_packages() {
  local wanted=() installed='' entry package
  [[ -n ${CXX:-} ]] || compiler_is_good || wanted+=(g++)
  cmake_is_good || wanted+=(cmake)
  has ninja || wanted+=(ninja-build)
  has ccache || wanted+=(ccache)
  venv_is_good || find_python >/dev/null || wanted+=(python3 python3-venv)
  [[ -e /etc/ssl/certs/ca-certificates.crt || -n ${SSL_CERT_FILE:-} ]] || wanted+=(ca-certificates)
  [[ -n ${MPI_HOME:-} ]] || has mpicxx || wanted+=(openmpi-bin libopenmpi-dev)
  for entry in libcli11-dev:CLI/CLI.hpp libspdlog-dev:spdlog/spdlog.h \
    libjemalloc-dev:jemalloc/jemalloc.h libspectra-dev:Spectra/GenEigsSolver.h \
    libyaml-cpp-dev:yaml-cpp/yaml.h nlohmann-json3-dev:nlohmann/json.hpp \
    libgtest-dev:gtest/gtest.h libgmock-dev:gmock/gmock.h zlib1g-dev:zlib.h libcurl4-openssl-dev:curl/curl.h libssl-dev:openssl/evp.h libasio-dev:asio.hpp \
    libeigen3-dev:eigen3/Eigen/Core; do
    has_header "${entry#*:}" || wanted+=("${entry%%:*}")
  done
  if [[ $dev == yes ]]; then
    has clang-format-14 || has clang-format || wanted+=(clang-format)
    has clang-tidy || wanted+=(clang-tidy)
    has doxygen || wanted+=(doxygen)
    has git || wanted+=(git)
    has_python_headers || wanted+=(python3-dev)
    [[ -x $(PATH=$PATH:/usr/sbin:/sbin command -v tc) ]] || wanted+=(iproute2)
    [[ $(id -u) != 0 ]] || has etcd || wanted+=(etcd-server)
    [[ $(id -u) != 0 ]] || { has slurmctld && has munged; } || wanted+=(slurm-wlm munge)
  fi

  missing=()
  if ((${#wanted[@]} > 0)) && has dpkg-query; then
    installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
  fi
  for package in "${wanted[@]}"; do
    if ! grep -qxF "$package installed" <<<"$installed"; then
      missing+=("$package")
    fi
  done
}

install_packages() {
  local missing sudo=() log apt_get
  find_missing_packages
  if ((${#missing[@]} == 0)); then
    return
  fi
  if ! has apt-get; then
    fail "These Debian packages, or what your system calls them, are missing, and there is no apt:
    ${missing[*]}"
    return
  fi
  if [[ $(id -u) != 0 ]]; then
    if ! has sudo || ! sudo -n true 2>/dev/null; then
      fail "Debian packages are missing, and installing them takes root. Type as root (or after sudo):
    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
      return
    fi
    sudo=(sudo -n)
  fi

  say "setup: installing with apt: ${missing[*]}"
  apt_get=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive TZ=Etc/UTC LC_ALL=C.UTF-8
    apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
  log=$(mktemp)
  # A repository that does not answer need not be the one we want: try to install all the same.
  "${apt_get[@]}" update >"$log" 2>&1 || true
  if "${apt_get[@]}" install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    changed=yes
    # Tests start an etcd of their own. The package's would keep its ports.
    if [[ " ${missing[*]} " == *' etcd-server '* ]]; then
      "${sudo[@]}" service etcd stop >/dev/null 2>&1 || true
      [[ ! -d /run/systemd/system ]] || "${sudo[@]}" systemctl --quiet disable etcd || true
    fi
  else
    tail -n 15 "$log" >&2
    fail "apt could not install (its last words are above): ${missing[*]}
    Is the network reachable? Then type as root:
    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  rm -f "$log"
}

# What is on PATH may hide what apt installed.
check_tools() {
  if ((${#failures[@]} > 0)); then
    return
  fi
  if ! compiler_is_good; then
    if [[ -n ${CXX:-} ]]; then
      fail "CXX is '$CXX', which is not on PATH. Set CXX to a C++20 compiler, or unset it."
    else
      fail "g++ ($(command -v g++ || echo none)) is older than 12. Put a newer one first on PATH, or set CXX."
    fi
  fi
  cmake_is_good || fail "cmake ($(command -v cmake || echo none)) is older than 3.25. Put a newer one first on PATH."
  if [[ -n ${MPI_HOME:-} ]] && ! mpi_home_is_good; then
    fail "MPI_HOME is '$MPI_HOME', but neither include/mpi.h nor bin/mpicxx is there. Correct or unset it."
  fi
}

# ---- Python packages and LibTorch --------------------------------------------------------------

# Prints the pins of a requirements file that .venv does not hold.
missing_pins() {
  "$venv/bin/python" -I - "$1" <<'PYTHON'
import sys
from importlib import metadata

for line in open(sys.argv[1], encoding="utf-8"):
    pin = line.split("#")[0].strip()
    if not pin:
        continue
    name, version = pin.split("==")
    try:
        there = metadata.version(name)
    except metadata.PackageNotFoundError:
        there = None
    if there != version:
        print(pin)
PYTHON
}

# install_pins FILE WORDS [NOTE [INSTEAD]]: into .venv. The files pin every dependency, hence --no-deps.
install_pins() {
  local file=$1 words=$2 note=${3:-} instead=${4:-} pins
  pins=$(missing_pins "$file")
  if [[ -z $pins ]]; then
    return
  fi
  say "setup: installing $words into .venv$note"
  # shellcheck disable=SC2086
  if PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$venv/bin/python" -I -m pip install --quiet --no-input \
    --disable-pip-version-check --progress-bar off --no-deps $pins; then
    changed=yes
  else
    fail "pip could not install $words (its last words are above). Is PyPI reachable? Then type:
    $venv/bin/python -m pip install --no-deps -r $file$instead"
    return 1
  fi
}

make_venv() {
  local python
  if ! venv_is_good; then
    if ! python=$(find_python); then
      if [[ -n ${PYTHON:-} ]]; then
        fail "PYTHON is '$PYTHON', which is not a Python 3.11 to 3.14 with venv. Correct or unset it."
      else
        fail "There is no Python 3.11 to 3.14 with venv. Install one (Debian: python3 python3-venv), or set PYTHON."
      fi
      return 1
    fi
    if [[ -e $venv ]]; then
      say "setup: .venv does not work any more (its Python is gone or not allowed); making it anew"
    else
      say "setup: making .venv with $python"
    fi
    if ! "$python" -I -m venv --clear "$venv"; then
      fail "The Python environment could not be made. Type, and read what it says:
    $python -m venv --clear $venv"
      return 1
    fi
    changed=yes
  fi
  if ! python_is_good "$venv/bin/python"; then
    fail ".venv holds a Python that is not one of 3.11 to 3.14. Delete it, and run this again: rm -r $venv"
    return 1
  fi
  if ! "$venv/bin/python" -I -c 'import pip' 2>/dev/null; then
    "$venv/bin/python" -I -m ensurepip >/dev/null
  fi
}

install_libtorch() {
  if users_libtorch >/dev/null; then
    return
  fi
  if [[ -n ${LIBTORCH_ROOT:-} ]]; then
    fail "LIBTORCH_ROOT is '$LIBTORCH_ROOT', but there is no lib/libtorch_cpu.so and include/torch in it.
    Correct it, or unset it: then LibTorch is installed into .venv."
    return
  fi
  install_pins "$root/scripts/requirements-libtorch.txt" "LibTorch" " (1.3 GB, a minute or two)" "
    Or set LIBTORCH_ROOT to a LibTorch that you have." || return 0
  if ! libtorch_at "$venv" >/dev/null; then
    fail "torch is in .venv, but its libtorch_cpu.so is not: an install broke off? Type, and run this again:
    $venv/bin/python -m pip uninstall -y torch"
  fi
}

# ------------------------------------------------------------------------------------------------

install_packages
check_tools
if make_venv; then
  install_pins "$root/scripts/requirements.txt" "the Python packages" || true
  if [[ $dev == yes ]]; then
    install_pins "$root/scripts/requirements-dev.txt" "the packages of tests and of the site" || true
  fi
  install_libtorch
  if [[ $gpu == yes ]] && ! users_libtorch >/dev/null; then
    install_pins "$root/scripts/requirements-gpu.txt" "NVIDIA's libraries" " (2.3 GB)" || true
  fi
fi

if ((${#failures[@]} > 0)); then
  die "" "setup: not complete." "${failures[@]/#/  - }"
fi
if [[ $changed == yes ]]; then
  say "setup: done in $SECONDS s"
else
  say "setup: everything is there"
fi
