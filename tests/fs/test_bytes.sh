#!/bin/bash
# Every readable fixture, byte for byte, through every way of reading it.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"

# One Python process per fixture does all of it: mount, cat by path and by FQN, ls, check --data.
cases_every_way_shows_torch_s_bytes() { expect fixtures dcp dcp-ranklocal hf hyperparallel megatron megatron-zarr; }
test_every_way_shows_torch_s_bytes() { expect every-way "$1" "$CKPTFS" m; }

run_suite "$@"
