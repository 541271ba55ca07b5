#!/usr/bin/env bash
# Name the frameworks of the vendor that one of our images can run: each must import what its trainer imports. Only the
# Dockerfiles run it, after they have copied the checkout. A framework that is incomplete gets one line and is no failure,
# because the others work.
#
# Usage:  PLATFORM=amd|nvd shell/inside/probe_image.sh
# Reads:  the Python of the base image, TPRIMAT_VENV-titan; TPRIMAT_IN_CONTAINER must be set
# Writes: one line for each framework on stderr
# Exits:  0; 2 bad argument or platform
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

main() {
  local framework output frameworks=(prim titan)
  show_help_if_asked "$@"
  if [[ $("$ROOT/shell/platform.sh") == nvd ]]; then frameworks=(bridge nemo titan); fi
  HOME=$(mktemp -d) # what an import writes there as root would be in the way of the image's users
  export HOME PYTHONDONTWRITEBYTECODE=1
  for framework in "${frameworks[@]}"; do
    if output=$("$ROOT/shell/inside/setup_framework.sh" "$framework" 2>&1); then
      say "FRAMEWORK=$framework runs with ${output##*$'\n'}"
    else
      say "note: FRAMEWORK=$framework cannot run in this image: ${output##*error: }"
    fi
  done
  rm -rf -- "$HOME"
}

main "$@"
