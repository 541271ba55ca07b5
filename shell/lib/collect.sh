#!/usr/bin/env bash
# Collect the wheels that a machine without a network lacks, on one that reaches a package index. Sourced.
#
# A GPU machine keeps its own PyTorch, so for amd and nvd neither torch nor CUDA is collected.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/install.sh; . shell/lib/wheels.sh; . shell/lib/collect.sh
#         collect_wheels DIR 3.12 x86_64
# Reads:  ROOT, PLATFORM, FRAMEWORK; *-requirements.txt; pip's own settings, proxies
# Writes: DIR; a temporary folder, removed at the end
# Exits:  1 a wheel could not be collected; 2 bad argument, or a folder that is not the suite's or is for something else

# On NVIDIA, Bridge and NeMo are those of NVIDIA's container; Primus is that of AMD's. torchtitan needs Python 3.11.
choose_environments() { # <python>; sets environments
  local name frameworks
  frameworks=,$(setting FRAMEWORK), || exit
  environments=(evaluate)
  for name in titan prim bridge nemo; do
    if [[ $PLATFORM != cpu && $name != titan || $1:$name == 3.10:titan ]]; then continue; fi
    if [[ $frameworks == @(,all,|*",$name,"*) ]]; then environments+=("$name"); fi
  done
}

# Print what a machine needs beside the wheels, and how to get it.
describe_rest() {
  local torch_extension='compiles beside the PyTorch and the GPU libraries of the machine'
  if [[ $PLATFORM == cpu ]]; then
    printf 'not here: Primus (prim): git clone --recursive https://github.com/AMD-AGI/Primus, then PRIMUS_PATH\n'
    return
  fi
  printf 'not here: %s\n' "PyTorch and numpy: the python3 of the machine must have them" \
    "liger-kernel (HF_KERNELS=liger): pip download --no-deps liger-kernel"
  if [[ $PLATFORM == nvd ]]; then
    printf 'not here: %s\n' "TransformerEngine (LAYERS=te, fp8): pip download --no-deps transformer-engine \
transformer-engine-cu13 transformer-engine-torch; the last is source, which $torch_extension: \
pip install --no-build-isolation --no-deps" \
      "Megatron-Bridge, NeMo (bridge, nemo): in NVIDIA's images nvcr.io/nvidia/nemo:26.08 and 26.02"
  else
    printf 'not here: %s\n' "TransformerEngine (LAYERS=te, fp8): source, which $torch_extension: \
git clone --recursive https://github.com/ROCm/TransformerEngine" "Primus (prim): in AMD's image rocm/primus:v26.7"
  fi
}

# A package that has no wheel is built here, if its wheel is one for every machine. pip's error names the package.
download() { # <python> <pip arguments...>
  local package='' earlier='' output=$work/output
  until run_quietly "$output" "$work/venv/bin/python" "$ROOT/shell/lib/pip_elsewhere.py" "$1" "$machine" download --no-input \
    --disable-pip-version-check --progress-bar off --find-links "$work/built" --find-links "$folder/wheels" \
    --dest "$folder/wheels" "${@:2}"; do
    if [[ $(<"$output") =~ "No matching distribution found for "([^[:space:]\;]+) ]]; then package=${BASH_REMATCH[1]}; fi
    if [[ $package == "$earlier" ]]; then
      cat -- "$output" >&2
      die setup "pip: could not collect '${*:2}', its reason is above; check network, proxy and PIP_INDEX_URL, then run again"
    fi
    earlier=$package
    say "      building $package, which has no wheel for Python $1 on $machine"
    run_quietly "$output" "$work/venv/bin/python" -m pip wheel --no-deps --wheel-dir "$work/new" "$package" || true # see below
    if ! mv -- "$work"/new/*-none-any.whl "$work/built" 2>/dev/null; then
      die setup "$package: got no wheel for Python $1 on $machine and cannot build one here, wanted one; make it on such a" \
        "machine with pip wheel, name its folder in PIP_FIND_LINKS and run again"
    fi
  done
}

download_all() { # with the variables of collect_wheels
  local name index=() torch_pin
  torch_pin=$(sed -n 's/^torch==//p' "$ROOT/cpu-requirements.txt")
  if [[ $PLATFORM != cpu ]]; then
    "$work/venv/bin/python" "$ROOT/shell/lib/pip_elsewhere.py" torch "$torch_pin" "$work/built"
  elif has_cpu_wheels "$work/venv/bin/python"; then
    index=(--extra-index-url "$CPU_WHEELS")
  else
    say "torch: from pip's index, because $CPU_WHEELS does not answer (may be the CUDA build, several GB)"
  fi
  say "collecting wheels of .venv and .venv-evaluate"
  cd -- "$ROOT" || return
  download "$python" "${index[@]}" -c cpu-requirements.txt -r "$PLATFORM-requirements.txt" -r evaluate-requirements.txt
  download "$python" --no-deps -r energy-requirements.txt
  if [[ $PLATFORM != cpu && $python != 3.13 ]]; then # pandas 3 needs numpy 2, but the PyTorch of the machine may need numpy 1
    printf 'torch==%s\nnumpy<2\n' "$torch_pin" >"$work/pins.txt"
    download "$python" -c "$work/pins.txt" -r "$PLATFORM-requirements.txt"
  fi
  for name in "${environments[@]:1}"; do
    say "collecting wheels of .venv-$name"
    case $name in
      titan) download "$python" --no-deps -r titan-requirements.txt ;;
      prim) download "$python" -r prim-requirements.txt ;;
      bridge)
        download 3.12 "${index[@]}" -c bridge-requirements.txt torch numpy
        download 3.12 --no-deps -r bridge-requirements.txt
        ;;
      nemo) download 3.11 "${index[@]}" -r nemo-requirements.txt ;;
    esac
  done
  rm -f -- "$folder/wheels/torch-$torch_pin+your.own-py3-none-any.whl"
}

collect_wheels() { # <folder> <python> <machine>
  local folder=$1 python=$2 machine=$3 lines
  if [[ $python != 3.1[0-3] ]]; then refuse "setup: --python: got $python, wanted 3.10, 3.11, 3.12 or 3.13"; fi
  if [[ $machine != @(x86_64|aarch64) ]]; then refuse "setup: --machine: got $machine, wanted x86_64 or aarch64"; fi
  choose_environments "$python"
  mapfile -t lines < <(describe "$python" "$machine" "${environments[@]}")
  if is_ours "$folder"; then
    require_lines "$folder" "name another folder" "${lines[@]:0:4}"
  elif [[ -e $folder && ! -d $folder || -n $(ls -A -- "$folder" 2>/dev/null) ]]; then
    refuse "setup: $folder: exists, and this suite has not made it; name a new or an empty folder"
  fi
  mkdir -p -- "$folder/wheels"
  printf '%s\n' "${lines[@]}" "$(describe_rest)" >"$folder/manifest.txt"
  rm -f -- "$folder/SHA256SUMS"
  work=$(mktemp -d)
  trap 'rm -rf -- "$work"' EXIT
  mkdir "$work/built"
  "$(find_python)" -m venv "$work/venv" >&2
  say "wheels for PLATFORM=$PLATFORM, Python $python, $machine: .venv ${environments[*]/#/.venv-}"
  download_all
  (cd -- "$folder" && sha256sum -- wheels/*.whl >.SHA256SUMS && mv -- .SHA256SUMS SHA256SUMS)
  describe_rest >&2
  say "ready: $folder; copy it to the machine, and run there: ./tprimat setup --offline DIR"
}
