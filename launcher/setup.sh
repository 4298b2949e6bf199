# shellcheck shell=bash
# Sourced by launcher/quickstart, tests/run and tests/gpu_bundle: goes to the repository's root and defines what
# they do first, set_up (Debian packages, a Python environment, the model), find_cuda and build. What is there
# already is left alone. Progress goes to stderr; what apt, pip and CMake print is shown where they
# fail.

PACKAGES=(
  # tools
  g++ cmake ninja-build ccache pkgconf python3-venv procps
  # libraries
  libabsl-dev libboost-context-dev libcli11-dev libcpp-httplib-dev libgrpc++-dev libopenmpi-dev libpcre2-dev
  libprotobuf-dev libspdlog-dev libssl-dev libtomlplusplus-dev libutf8proc-dev libxxhash-dev
  nlohmann-json3-dev prometheus-cpp-dev
  # programs that the build and the launcher run
  openmpi-bin openssl protobuf-compiler protobuf-compiler-grpc
  # tests
  iproute2 libgmock-dev libgtest-dev
)
REQUIREMENTS=(tools/requirements.txt tools/requirements-test.txt)

OUTRIDER_CACHE=$(realpath -m "${OUTRIDER_CACHE:-${HOME:?}/.cache/outrider}")
export OUTRIDER_CACHE
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf 'outrider: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

# quietly COMMAND…: runs it with no input, and shows the end of what it printed where it fails.
quietly() {
  local output status=0
  output=$("$@" 2>&1 </dev/null) || status=$?
  [ "$status" = 0 ] || tail -n 20 <<<"$output" >&2
  return "$status"
}

# installed PACKAGE…: those of them that are, sorted.
installed() {
  dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' | sort -u
}

# update_package_lists APT-GET…: its own time-out is not for the lists' lock.
update_package_lists() {
  local output deadline=$((SECONDS + 300))
  until output=$(quietly "$@" update 2>&1); do
    if [[ $output != *'Could not get lock /var/lib/apt/lists'* ]] || ((SECONDS >= deadline)); then
      printf '%s\n' "$output" >&2
      return 1
    fi
    sleep 2
  done
}

install_packages() {
  local missing root=() apt bundle=/etc/ssl/certs/ca-certificates.crt site_bundle=''
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    die "this system has no apt-get; Outrider needs Debian 12 with the packages ${PACKAGES[*]}"
  fi
  missing=$(comm -23 <(printf '%s\n' "${PACKAGES[@]}" | sort) <(installed "${PACKAGES[@]}") | xargs)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "only root or sudo can install Debian packages: $missing"
    root=(sudo)
  fi
  say "installing Debian packages: $missing"
  # python3-venv brings ca-certificates, which replaces a bundle that the site has put there itself.
  if [ -s "$bundle" ] && [ -z "$(installed ca-certificates)" ]; then site_bundle=$(<"$bundle"); fi
  # A machine that has just started may hold apt's locks for its own updates: wait for them.
  apt=("${root[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  # shellcheck disable=SC2086  # the names are words
  if ! update_package_lists "${apt[@]}" ||
    ! quietly "${apt[@]}" install -y --no-install-recommends $missing; then
    die "could not install (Debian 12 and a network are needed): $missing"
  fi
  if [ -n "$site_bundle" ]; then "${root[@]}" tee -a "$bundle" <<<"$site_bundle" >/dev/null; fi
}

# Sets PYTHON to that of an environment with the pinned packages; one is kept for each set of pins.
make_python_environment() {
  local pins directory file install=()
  pins=$({ /usr/bin/python3 --version && cat "${REQUIREMENTS[@]}"; } | sha256sum | cut -c 1-12)
  directory=$OUTRIDER_CACHE/venv-$pins
  PYTHON=$directory/bin/python
  for file in "${REQUIREMENTS[@]}"; do install+=(-r "$file"); done
  [ ! -e "$directory/complete" ] || return 0
  (
    flock 9 # held until the subshell ends: two runs at once make it once
    [ ! -e "$directory/complete" ] || exit 0
    say "making a Python environment for ${REQUIREMENTS[*]}"
    quietly /usr/bin/python3 -m venv --clear "$directory" &&
      quietly "$PYTHON" -m pip install --disable-pip-version-check --no-input "${install[@]}" &&
      touch "$directory/complete"
  ) 9>"$directory.lock" || die "could not install ${REQUIREMENTS[*]} (PyPI must be reachable)"
}

# Whether the toolkit that cmake/cuda.cmake finds is one of CUDA 13 with an NCCL that will do.
has_cuda() {
  local nvcc release header version
  for nvcc in "${CUDACXX-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
    "$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)"; do
    if [ -x "$nvcc" ]; then break; fi
  done
  release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\).*/\1/p') || return 1
  ((${release:-0} >= 13)) || return 1
  for header in "$(dirname "$(dirname "$(realpath "$nvcc")")")/include/nccl.h" /usr/{local/,}include/nccl.h; do
    if [ -e "$header" ]; then break; fi
  done
  version=$(sed -n 's/^#define NCCL_VERSION_CODE \([0-9]*\)$/\1/p' "$header" 2>/dev/null) || return 1
  ((${version:-0} >= 22800))
}

# Makes a CUDA toolkit with NCCL of PyPI's parts where there is none that will do, and exports CUDA_HOME.
find_cuda() {
  local pins=tools/requirements-cuda.txt directory root library
  if has_cuda; then return 0; fi
  directory=$OUTRIDER_CACHE/cuda-$(sha256sum "$pins" | cut -c 1-12)
  root=$directory/nvidia/cu13
  [ -e "$directory/complete" ] || (
    flock 9
    [ ! -e "$directory/complete" ] || exit 0
    say "there is no CUDA 13 with NCCL 2.28 here: fetching the parts of CUDA in $pins"
    rm -rf "$directory"
    # As in a toolkit: lib64, libraries without their version, and NCCL among them.
    quietly "$PYTHON" -m pip install --disable-pip-version-check --no-input --no-deps --target "$directory" \
      -r "$pins" &&
      ln -s lib "$root/lib64" &&
      ln -s ../../nccl/include/nccl.h "$root/include/nccl.h" &&
      ln -s ../../nccl/lib/libnccl.so.2 "$root/lib/libnccl.so.2" || exit
    for library in "$root"/lib/*.so.*; do
      [ -e "${library%%.so.*}.so" ] || ln -s "${library##*/}" "${library%%.so.*}.so" || exit
    done
    [ -e "$root/include/nccl.h" ] && [ -e "$root/lib/libnccl.so" ] && [ -e "$root/lib/libcublasLt.so" ] &&
      quietly "$root/bin/nvcc" --version && touch "$directory/complete"
  ) 9>"$directory.lock" || die "there is no CUDA 13 with NCCL 2.28 here, and $pins could not be installed (PyPI must be reachable)"
  unset CUDACXX CUDA_PATH
  export CUDA_HOME=$root
}

# Sets PYTHON and MODEL, the directory of the model's checkpoint.
set_up() {
  mkdir -p "$OUTRIDER_CACHE"
  install_packages
  make_python_environment
  MODEL=$("$PYTHON" tools/fetch_model.py) || die "could not fetch the model"
}

# build PRESET TARGET…
build() {
  local preset=$1 directory=build/$1 quiet=() home=
  shift
  mkdir -p "$directory"
  (
    flock 9 # until the subshell ends: ninja has no lock of its own
    # A checkout that was moved or copied has what was configured for another.
    if [ -e "$directory/CMakeCache.txt" ]; then
      home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$directory/CMakeCache.txt")
    fi
    if [ -n "$home" ] && ! [ "$home" -ef . ]; then
      rm -rf "$directory"/{CMakeCache.txt,CMakeFiles,build.ninja}
    fi
    if [ ! -e "$directory/build.ninja" ] ||
      ! grep -qxF "OUTRIDER_PYTHON:FILEPATH=$PYTHON" "$directory/CMakeCache.txt"; then
      quietly cmake --preset "$preset" -D "OUTRIDER_PYTHON:FILEPATH=$PYTHON" ||
        die "could not configure $directory"
    fi
    say "building $* in $directory"
    # A terminal shows each step in one moving line; elsewhere what the compiler says is enough.
    [ -t 2 ] || quiet=(-- --quiet)
    cmake --build --preset "$preset" --target "$@" "${quiet[@]}" >&2 </dev/null ||
      die "the build failed"
  ) 9>"$directory/lock" || exit
}
