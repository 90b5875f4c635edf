#!/usr/bin/env bash
# scripts/build_gpu.sh pack [FOLDER]
# scripts/build_gpu.sh bundle [FILE]
# scripts/build_gpu.sh bundled
# scripts/build_gpu.sh [--deps FOLDER] [--test] [cmake arguments...]
#
# Builds for GPUs on a machine where nothing can be installed or downloaded: it needs torch 2.11,
# nvcc 12.5 or newer, CMake 3.25 or newer, ninja and g++ 12 or newer, and takes all else from a
# folder that travels along.
#
#   pack     on a Debian 12 with a network: fetches the other packages that the build needs and
#            unpacks them into FOLDER (build/gpu-deps, 29 MB); nothing is installed. Take the
#            project with that folder to the other machine.
#   bundle   packs what a build with CUDA has made (BUILD names its folder) into FILE
#            (build/gossamer-gpu.tar.xz): the program, the tests for GPUs, Open MPI and the other
#            libraries, for a machine that has a driver, the same torch, and nothing else.
#   bundled  prints the project's files that a bundle has.
#   (else)   builds into build/gpu. Without FOLDER what the machine has is used. MPI is used if
#            there is one; without it ranks are threads of one process. --test runs the tests,
#            those labelled gpu too.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
cd -- "$root"

# Debian 12's versions; any newer patch of them will do.
packages=(libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 libyaml-cpp-dev libyaml-cpp0.7
  libeigen3-dev libspectra-dev nlohmann-json3-dev libcli11-dev zlib1g-dev zlib1g libgtest-dev
  libgmock-dev libjemalloc-dev libjemalloc2 libasio-dev libssl-dev libssl3)

pack() {
  local folder work
  mkdir -p "$1"
  folder=$(cd -- "$1" && pwd)
  { has apt-get && has dpkg; } || die "build_gpu.sh pack: this needs Debian's apt-get and dpkg."
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf -- '$work'" EXIT
  # apt drops its rights in a folder that its own user cannot enter, and says so.
  if ! (cd -- "$work" && apt-get download -qq -o APT::Sandbox::User=root "${packages[@]}"); then
    die "build_gpu.sh pack: apt-get could not download the packages. Is the network reachable? Then type: apt-get update"
  fi
  rm -rf -- "${folder:?}/usr"
  for file in "$work"/*.deb; do dpkg -x "$file" "$work/unpacked"; done
  mkdir -p "$folder"
  mv -- "$work/unpacked/usr" "$folder/usr"
  # zlib's shared library lies in /lib, to which its link points.
  if [[ -d $work/unpacked/lib/x86_64-linux-gnu ]]; then
    cp -a "$work"/unpacked/lib/x86_64-linux-gnu/. "$folder/usr/lib/x86_64-linux-gnu/"
    ln -sf libz.so.1 "$folder/usr/lib/x86_64-linux-gnu/libz.so"
  fi
  # Debian keeps two of OpenSSL's headers where only its own compiler looks.
  cp -a "$folder"/usr/include/x86_64-linux-gnu/openssl/. "$folder/usr/include/openssl/"
  rm -f -- "$folder"/usr/lib/x86_64-linux-gnu/lib{crypto,ssl}.a
  rm -rf -- "$folder"/usr/share/doc "$folder"/usr/share/man "$folder"/usr/share/lintian \
    "$folder"/usr/src
  say "build_gpu: $(du -sh "$folder" | cut -f1) in $folder. On the other machine, type:" \
    "    scripts/build_gpu.sh --deps ${1} --test"
}

# libraries_of FILE...: the shared libraries that they load, apart from those of torch and of the C
# and C++ compilers, which the other machine's torch needs itself.
libraries_of() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u |
    grep -Ev '/(torch|nvidia)/|/lib(c|m|dl|rt|util|pthread|gcc_s|stdc[+][+])[.]so' || true
}

# Open MPI's plug-ins, apart from those of networks whose libraries the bundle lacks.
bundle_mpi() {
  local root=$1 base plugins plugin needed
  base=$(dirname -- "$(readlink -f -- "$(ldd "$root/bin/gossamer" | awk '$1 ~ "^libmpi[.]so" { print $3 }')")")
  plugins=$base/openmpi/lib/openmpi3
  [[ -d $plugins ]] || die "build_gpu.sh bundle: $plugins is not there; Debian's Open MPI is needed (openmpi-bin)."
  mkdir -p "$root"/openmpi/{bin,etc,share,lib/openmpi3,lib/pmix}
  cp -L -- "$(command -v orted)" "$root/openmpi/bin/"
  cp -L -- "$(command -v mpirun)" "$root/openmpi/bin/mpirun"
  for plugin in "$plugins"/*.so; do
    needed=$(libraries_of "$plugin" | grep -E 'libuc[pst]|libfabric|libpsm|libibverbs|librdmacm|libnl' || true)
    [[ -n $needed ]] || cp -L -- "$plugin" "$root/openmpi/lib/openmpi3/"
  done
  for plugin in /usr/lib/x86_64-linux-gnu/pmix2/lib/pmix/*.so; do cp -L -- "$plugin" "$root/openmpi/lib/pmix/"; done
  cp -rL -- /usr/share/openmpi/. "$root/openmpi/share/"
  cp -rL -- /etc/openmpi/. "$root/openmpi/etc/"
}

# The project's files in a bundle: what scripts/measure_gpu.sh runs, and what these files import.
bundled=(configs/{gpt_124m,reference}.yaml test/apps/commands/{cli_case,cli_gpu_test,cli_survival_test,etcd}.py
  scripts/{measure_gpu,bundle_env,lib,mpi_env}.sh scripts/lab/{gpu_peer,peer_step}.py)

bundle() {
  local archive=$1 build=${BUILD:-} work root program
  [[ -n $build ]] || build=$([[ -x build/gpu/test/test_gpu ]] && echo build/gpu || echo build/release)
  [[ -x $build/test/test_gpu ]] || die "build_gpu.sh bundle: $build has no test_gpu. Type: scripts/build.sh release -DGOSSAMER_CUDA=ON"
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf -- '$work'" EXIT
  root=$work/gossamer-gpu
  mkdir -p "$root"/{bin,lib,data}
  for program in "$build"/{gossamer,libgossamer_torch_cuda.so} "$build"/test/test_{gpu,gpu_torch,nccl_ranks}; do
    [[ ! -e $program ]] || cp -- "$program" "$root/bin/"
  done
  if ldd "$root/bin/gossamer" | grep -q 'libmpi[.]so'; then bundle_mpi "$root"; fi
  local files=("$root"/bin/* "$root"/openmpi/bin/* "$root"/openmpi/lib/*/*.so)
  libraries_of "${files[@]}" | while read -r library; do cp -L -- "$library" "$root/lib/"; done
  strip --strip-unneeded "$root"/bin/* "$root"/openmpi/bin/* "$root"/lib/*.so* "$root"/openmpi/lib/*/*.so 2>/dev/null || true
  cp --parents -- "${bundled[@]}" "$root/"
  # Any text does: what is measured is time.
  cat -- core/*/*.?pp optim/*.?pp comm/*.?pp comm/*/*.?pp apps/*/*.?pp docs/*/*.md >"$root/data/text.txt"
  mkdir -p "$(dirname -- "$archive")"
  tar -C "$work" -cJf "$archive" gossamer-gpu
  say "build_gpu: $(du -h "$archive" | cut -f1) in $archive. On the machine with the GPU, type:" \
    "    tar xf $(basename -- "$archive") && gossamer-gpu/scripts/measure_gpu.sh FOLDER"
}

show_help "$@"
case ${1:-} in
  bundle) bundle "${2:-build/gossamer-gpu.tar.xz}"; exit ;;
  bundled) say "${bundled[@]}"; exit ;;
  pack) pack "${2:-build/gpu-deps}"; exit ;;
esac

deps=
test=no
arguments=()
while (($# > 0)); do
  case $1 in
    --deps)
      [[ -d ${2:-}/usr ]] || die "build_gpu.sh: --deps needs the folder that 'scripts/build_gpu.sh pack FOLDER' has filled"
      deps=$(cd -- "$2" && pwd)/usr
      shift
      ;;
    --test) test=yes ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

for tool in nvcc cmake ninja g++; do
  has "$tool" || die "build_gpu.sh: $tool is not on PATH. Needed: nvcc, cmake, ninja, g++ and a torch (LIBTORCH_ROOT, or that of python3)."
done
choose_libtorch
mpi=ON
if ! has mpicxx && [[ -z ${MPI_HOME:-} ]]; then
  mpi=OFF
  say "build_gpu: no MPI here; ranks will be threads of one process"
fi

folder=build/gpu
options=(-DCMAKE_BUILD_TYPE=Release -DGOSSAMER_CUDA=ON -DGOSSAMER_MPI="$mpi")
if [[ -n $deps ]]; then
  # An old-fashioned RPATH: it also counts for what the libraries themselves need.
  options+=(-DCMAKE_PREFIX_PATH="$deps"
    "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags,-rpath,$deps/lib/x86_64-linux-gnu")
fi
cmake -S . -B "$folder" -G Ninja "${options[@]}" "${arguments[@]}"
cmake --build "$folder" -j "$(build_jobs)"
if [[ $test == yes ]]; then
  # shellcheck source=scripts/mpi_env.sh
  source scripts/mpi_env.sh
  ctest --test-dir "$folder" --output-on-failure -L gpu
  ctest --test-dir "$folder" --output-on-failure -LE 'gpu|cli' -j "$(build_jobs)"
fi
say "build_gpu: the program is $folder/gossamer; docs/guide/gpu.md says how to use it"
