# shellcheck shell=bash
# Sourced by the RUN steps of the Dockerfiles, in the repository's root: what launcher/quickstart
# does to build, with pinned versions, and the little that a container needs to run.
source launcher/setup.sh

RUNTIME_PACKAGES=(
  libabsl20220623 libcpp-httplib0.11 libgrpc++1.51 libopenmpi3 libpcre2-8-0
  libprometheus-cpp-core1.0 libprotobuf32 libspdlog1.10 libssl3 libtomlplusplus3 libutf8proc2
  libxxhash0 openmpi-bin
)
PINS=docker/packages.txt

# install_pinned: the packages of PACKAGES in the versions of docker/packages.txt; those that the
# base image has in another version too.
install_pinned() {
  local name version pinned=()
  for name in "${PACKAGES[@]}"; do
    version=$(awk -v name="$name" '$1 == name { print $2 }' "$PINS")
    [ -n "$version" ] || die "$PINS has no line for $name; docker/pin writes it"
    pinned+=("$name=$version")
  done
  say "installing Debian packages: ${pinned[*]}"
  if ! quietly apt-get -q update ||
    ! DEBIAN_FRONTEND=noninteractive quietly apt-get -qy --no-install-recommends install "${pinned[@]}"; then
    die "could not install these versions; docker/pin writes the ones that there are now"
  fi
  rm -rf /var/lib/apt/lists/*
}

install_runtime_packages() {
  PACKAGES=("${RUNTIME_PACKAGES[@]}")
  install_pinned
}

# build_program PRESET: build/PRESET/bin/outrider. No test runs here, so none of their Python
# packages is needed.
build_program() {
  PYTHON=/usr/bin/python3
  build "$1" outrider
}
