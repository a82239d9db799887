#!/bin/bash
# tests/torch/python.sh
#
# The Python package with real PyTorch: tensors of every type of torch's, as torch loads them; a model of transformers
# with weights from a checkpoint of Megatron-core, without Megatron-core; the interface of safetensors; the loader for
# vLLM; the wheel. Must be root, for the chroot that PyTorch lives in (scripts/chroot.sh).
#
# $CKPTFS is the program, default build/release/ckptfs; its library is beside it.
set -euo pipefail

cd "$(dirname "$0")/../.."
# shellcheck source=lib.sh
. tests/torch/lib.sh

with_package python_check.py /mnt/data /mnt/out

# The same checks with the wheel, which a newer Debian's pip installs without a network, and not this build's library.
cp build/ckptfs-*.whl "$tmp/"
# shellcheck disable=SC2016 # expanded by the inner shell
if in_chroot sh -ec 'PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) \
  python3 -m pip install --no-index --no-cache-dir --disable-pip-version-check --target /mnt/out/site /mnt/out/ckptfs-*.whl
  /mnt/out/site/bin/ckptfs --version; ls /mnt/out/site/ckptfs/libckpt.so.*' >"$tmp/pip" 2>&1; then
  pass
  mkdir "$tmp/wheel"
  counted "wheel" timeout 900 scripts/chroot.sh run --bind "$PWD/tests/torch:/mnt/tests" --bind "$PWD/tests/data:/mnt/data" \
    --bind "$tmp:/mnt/out" -- env PYTHONPATH=/mnt/out/site XDG_CACHE_HOME=/mnt/out/cache \
    python3 /mnt/tests/python_check.py /mnt/data /mnt/out/wheel all_types safetensors_interface
else
  fail "pip install"
  cat "$tmp/pip"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
