#!/bin/bash
# The Python package with Debian's Python and NumPy, on every fixture.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="each_fixture_is_what_the_commands_show threads_may_read_and_close a_series_is_that_of_stat \
  it_finds_what_is_installed a_wheel_is_all_that_is_needed structures_are_those_of_the_header \
  bfloat16_is_a_type_of_ml_dtypes it_lists_a_checkpoint"

TOP=$(realpath "$HERE/../..")
BUILD=$(dirname "$CKPTFS")
for CKPTFS_LIBRARY in "$BUILD"/libckpt.so.*; do :; done
export CKPTFS_LIBRARY

# A sanitizer's library must be loaded before ours. Leaks are not reported, because Python itself leaves some.
py() {
  local preload
  preload=$(ldd "$CKPTFS_LIBRARY" | awk '/lib(a|t)san/ { print $3 }')
  env ${preload:+LD_PRELOAD="$preload" ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"} \
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="${PYTHONPATH-$TOP/scripts/python}" PYTHONWARNINGS=error \
    PYTHONUTF8=1 /usr/bin/python3 "$@"
}
check() { py "$HERE/python.py" "$@"; }

cases_each_fixture_is_what_the_commands_show() { every_fixture; }
test_each_fixture_is_what_the_commands_show() {
  local path=$DATA/$1/ckpt
  check fixture "$path"
  [[ ! -e $path/model.pt ]] || check fixture "$path/model.pt"
}

test_names_types_and_shapes_are_those_of_ls() { check listing "$(zoo)"; }

test_options_are_those_of_the_mount() {
  echo 's/^model\.layers\.0\.q\.weight$/trunk.q/' >rules
  echo 's/^nothing$/something/' >useless
  printf '%s\n' 'mesh tp=2' '*.q.weight tp:0' '* replicate' >mesh
  check options "$(zoo)"
}

test_failures_are_exceptions_with_the_library_s_sentence() { check errors "$(zoo)"; }
test_one_element_is_a_value() { check items -; }
test_buffers_get_the_bytes_of_elements() { check buffers "$(zoo)"; }
test_memory_that_elements_share_is_refused() { check overlaps "$(zoo)"; }
test_bfloat16_is_a_type_of_ml_dtypes() { check ml_dtypes "$(zoo)"; }
test_files_of_the_tree_are_files() { check files "$(zoo)"; }
test_state_dicts_are_filled_by_threads() { check state_dict "$(big)/ckpt"; }

test_what_lies_whole_in_a_file_is_mapped() {
  ckptfs reshard -q "$(big)/ckpt" whole --format=safetensors
  aged whole
  check mapped whole
}

test_tensors_in_more_files_than_may_be_open_are_mapped() {
  mkdir many
  python3 - 200 <<'END'
import json, struct, sys
n = int(sys.argv[1])
files = [f"many/model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)]
for i, file in enumerate(files):
    head = json.dumps({f"t{i}": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode().ljust(64)
    open(file, "wb").write(struct.pack("<Q", 64) + head + struct.pack("<2f", i, -i))
json.dump({"metadata": {}, "weight_map": {f"t{i}": file[5:] for i, file in enumerate(files)}},
          open("many/model.safetensors.index.json", "w"))
END
  check many_mapped many 200
}

cases_safetensors_interface_over_each_fixture() { every_fixture; }
test_safetensors_interface_over_each_fixture() { check loading "$DATA/$1/ckpt"; }

test_checkpoints_and_tensors_can_be_pickled() { check pickled "$(big)/ckpt"; }
test_threads_may_read_and_close() { check threads "$(big)/ckpt"; }

test_a_series_is_that_of_stat() {
  python3 -c 'import struct
for i, v in enumerate([(1, 2, 2), (1, 2, 4), (1, float("nan"), 4), (0, 0, 0), (0, 0, float("inf"))]):
    open(f"v{i}", "wb").write(struct.pack("<3f", *v))'
  mkdir run run/step-14
  make_dcp run/step-9 model.w 3 1:v0 model.gone 3 1:v0 optim.x 2 1
  make_dcp run/step-10 model.w 3 3:v1 model.x.0 2x3 1x1
  make_dcp run/step-11 model.w 3x1 1x1:v1 model.x.0 2x3 1x1
  make_dcp run/step-12 model.w 3x1 1x1:v2
  make_dcp run/step-13 model.w 3x1 1x1:v3
  make_dcp run/step-15 model.w 3x1 1x1:v4
  cp run/step-12/*.distcp run/step-14
  truncate -s 1 run/step-10/*.distcp
  aged run
  check series run
  check series run '*w*'
  check series run '*x.*' '*w'
  check exceptions run/step-12 run
}

test_structures_are_those_of_the_header() {
  mkdir -p inc/ckptfs
  cp "$TOP"/core/include/ckptfs/*.h inc/ckptfs
  check structures >s.c
  read -ra compiler <<<"${CC:-cc}"
  "${compiler[@]}" -Iinc -I"$TOP/core" -o s s.c
  ./s | check structures compare
}

test_it_lists_a_checkpoint() {
  local ck
  ck=$(zoo)
  status_of 0 py -m ckptfs "$ck"
  is "$(ckptfs ls "$ck" | wc -l)" "$(wc -l <out)"
  grep -qx 'float16  *\[55, 7\]  *model.layers.2.half' out
  status_of 0 py -m ckptfs "$ck" model dtype=fp32
  grep -qx 'float32  *\[55, 7\]  *layers.2.half' out
  status_of 0 py -m ckptfs "$ck" allow_missing
  status_of 2 py -m ckptfs "$ck" dtype
  grep -q "option 'dtype'" err
  status_of 2 py -m ckptfs "$T/no"
  grep -q "open '$T/no'" err
  status_of 2 py -m ckptfs
}

# Installed by `make install`, the package finds its library by itself.
test_it_finds_what_is_installed() {
  make -s -C "$TOP" -o lib install-lib VARIANT="$VARIANT" BUILD="$BUILD" PREFIX="$T/usr" LDCONFIG=:
  mv usr elsewhere
  (
    PYTHONPATH=$(echo "$T"/elsewhere/lib/python3*/dist-packages)
    real=$CKPTFS_LIBRARY
    py() { env -u CKPTFS_LIBRARY /usr/bin/python3 "$@"; }
    if [[ $VARIANT == release ]]; then
      export PYTHONPATH
      is "$T/elsewhere/lib/$(basename "$real")" \
        "$(py -c 'import ckptfs; ckptfs._libckpt._library(); print([x.split()[-1] for x in open("/proc/self/maps") if "libckpt" in x][0])' |
          sed -E 's/\.so\.([0-9]+\.[0-9]+)\.[0-9]+$/.so.\1/')"
    fi
  )
  rm -r elsewhere/lib/libckpt*
  cp -r "$TOP/scripts/python/ckptfs" .
  # Any library with the right soname will do, whatever the last number of its version.
  sed -i -E 's/^(__version__ = "[0-9]+\.[0-9]+)\..*/\1.999"/' ckptfs/_libckpt.py
  PYTHONPATH=$T status_of 1 py -c 'import ckptfs; ckptfs.open("x")'
  grep -q "NotFoundError: open 'x'" err
  sed -i 's/^__version__ = .*/__version__ = "0.0.0"/' ckptfs/_libckpt.py
  PYTHONPATH=$T status_of 1 py -c 'import ckptfs; ckptfs.open("x")'
  grep -q 'ImportError: .* is for 0.0.0' err
}

# pip installs the wheel, without a network, in an environment from which neither the sources nor this build can be
# reached. tests/torch/python.sh does the same with the Python and the C library of a newer Debian.
sha256_of() {
  python3 -c 'import base64, hashlib, sys
print(base64.urlsafe_b64encode(hashlib.sha256(open(sys.argv[1], "rb").read()).digest()).rstrip(b"=").decode())' "$1"
}
test_a_wheel_is_all_that_is_needed() {
  local bin=$T/env/bin wheel unzipped name hash size
  [[ $BUILD == */build/release ]] || return 0 # the wheel is made of this build
  wheel=$(echo "$TOP"/build/ckptfs-*.whl)
  # RECORD is right about each file; the library exports only names with our prefix, and needs only the C library.
  unzipped=$T/unzipped
  python3 -m zipfile -e "$wheel" "$unzipped"
  (cd "$unzipped" && find . -type f -printf '%P\n' | sort) >have
  cut -d, -f1 "$unzipped"/*.dist-info/RECORD | sort | diff - have
  while IFS=, read -r name hash size; do
    [[ -n $hash ]] || continue
    is "$size" "$(stat -c %s "$unzipped/$name")"
    is "${hash#sha256=}" "$(sha256_of "$unzipped/$name")"
  done <"$unzipped"/*.dist-info/RECORD
  is "" "$(nm -D --defined-only "$unzipped"/ckptfs/libckpt.so.* | grep -v ' T ckpt_' || true)"
  is "ld-linux libc libm" "$(for name in "$unzipped"/ckptfs/libckpt.so.* "$unzipped"/*.data/scripts/ckptfs; do
    readelf -d "$name" | sed -nE 's/.*NEEDED.*\[(ld-linux|lib[a-z]+).*/\1/p'
  done | sort -u | paste -sd' ')"
  /usr/bin/python3 -m venv --system-site-packages env
  HOME=$T "$bin/pip" install --quiet --no-index --no-cache-dir --disable-pip-version-check "$wheel"
  py() { env -u CKPTFS_LIBRARY -u PYTHONPATH CKPTFS="$bin/ckptfs" PYTHONDONTWRITEBYTECODE=1 "$bin/python" "$@"; }
  is "$("$CKPTFS" --version)" "$("$bin/ckptfs" --version)"
  is "$T/env/lib" "$(py -c 'import ckptfs
ckptfs._libckpt._library()
print([x.split()[-1] for x in open("/proc/self/maps") if "libckpt" in x][0])' | sed 's|/python.*||')"
  check listing "$(zoo)"
  check errors "$(zoo)"
  check state_dict "$(big)/ckpt"
  # Blosc's codecs are in it, too.
  is "$("$CKPTFS" sum "$DATA/mcore_zarr/ckpt")" "$("$bin/ckptfs" sum "$DATA/mcore_zarr/ckpt")"
  mkdir mnt
  "$bin/ckptfs" mount "$DATA/plain/ckpt" mnt
  is "$("$CKPTFS" cat "$DATA/plain/ckpt" .ckptfs/info.json | head -c 20)" "$(head -c 20 mnt/.ckptfs/info.json)"
  "$bin/ckptfs" umount mnt
}

# A copy of the module may find a library in the directories above it. It is loaded only if these are its source tree or
# the place where it is installed, and if the files' owners are trusted. Each case: MODULE LIBRARY LOADED WORD...
cases_a_library_that_lies_about_is_not_loaded() {
  printf '%s\n' "x build/release no" "scripts/python build/release no" "scripts/python build/release no sources theirs:build" \
    "scripts/python build/release no sources theirs:Makefile" "scripts/python build/release no sources theirs:core/include" \
    "scripts/python build/release no sources link:build" "x build/release no sources" "scripts/python build/release yes sources" \
    "x x/ckptfs yes" "x x/ckptfs no theirs:LIBRARY" "a/b . no" "python3/dist-packages . yes" "python3.11/site-packages . yes" \
    "python3/dist-packages . no theirs:LIBRARY"
}
test_a_library_that_lies_about_is_not_loaded() {
  local module=$1 where=$2 loaded=$3 library word name compiler
  library=$where/$(basename "$CKPTFS_LIBRARY")
  [[ $(id -u) == 0 ]] || skip "not root"
  shift 3
  mkdir -p "d/$module"
  cp -r "$TOP/scripts/python/ckptfs" "d/$module"
  mkdir -p "d/$where"
  read -ra compiler <<<"${CC:-cc}"
  echo '#include <stdio.h>
__attribute__((constructor)) static void hello(void) { puts("loaded"), fflush(stdout); }' |
    "${compiler[@]}" -shared -fPIC -x c -o "d/$library" -
  for word; do
    name=${word#*:}
    case $word in
      sources) mkdir -p d/core/include/ckptfs && touch d/Makefile d/core/include/ckptfs/ckpt.h ;;
      theirs:LIBRARY) chown 65534 "d/$library" ;;
      theirs:*) chown 65534 "d/$name" ;;
      link:*) mv "d/$name" "$name" && ln -s "$T/$name" "d/$name" && chown -h 65534 "d/$name" ;;
    esac
  done
  # shellcheck disable=SC2030 # in the subshell
  (
    unset CKPTFS_LIBRARY
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=d/$module /usr/bin/python3 -c 'import ckptfs; ckptfs._libckpt._library()' >out 2>err || true
  )
  is "$loaded" "$(grep -qx loaded out && echo yes || echo no)"
}

test_quantised_weights_are_codes_and_scales() {
  mkdir hf
  # shellcheck disable=SC2046 # words
  python3 "$HERE/dequant.py" "$SEED" fp8 bf16 $(python3 "$HERE/gguf.py" model llama hf | cut -d ' ' -f 1,2)
  py - <<'PYTHON'
import ckptfs
with ckptfs.safe_open("bf16", "np", quantize="fp8_dynamic") as f:
    assert f.get_slice("model.layers.0.mlp.up_proj.weight_scale").get_shape() == [96, 1], f.keys()
    codes = f.get_slice("model.layers.0.mlp.up_proj.weight")
    assert codes.get_dtype() == "F8_E4M3" and codes.get_shape() == [96, 64], codes.get_dtype()
PYTHON
}

run_suite "$@"
