#!/bin/bash
# export: complete, in parallel, resumable, and never half done under the final name.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="a_tree killed_at_any_moment_it_goes_on finished_units_are_not_copied_again \
  an_interruption_says_how_it_goes_on units_whose_file_is_gone_are_copied_again two_commands_are_never_mixed"

# A checkpoint of one tensor of 24 or 96 MiB and 200 small ones, made once.
many() {
  local dir=$SCRATCH/many i args=(w 2048x3072 2x2)
  ! is_full || args=(w 4096x6144 2x2)
  if [[ ! -e $dir/done ]]; then
    rm -rf "$dir"
    mkdir "$dir"
    for ((i = 0; i < 200; i++)); do args+=("layer.$i" "16x$((i % 7 * 100 + 1))" 1x1); done
    python3 "$HERE/make_dcp.py" "$dir/ckpt" "${args[@]}" >&2
    rm "$dir"/ckpt.*.bin
    aged "$dir/ckpt"
    touch "$dir/done"
  fi
  echo "$dir"
}

nothing_left_over() { [[ -z $(find "${1:-.}" -name '*.partial*') ]] || fail "$(find "${1:-.}" -name '*.partial*')"; }

# The number of units that are on disk according to the state file.
recorded() { [[ ! -e x.partial.state ]] || tail -c +513 x.partial.state | tr -cd '\001' | wc -c; }
some_recorded() { (($(recorded) + 0 >= $1)); }

# cut_short UNITS ARG...: an export to x that is killed when it has recorded that many units
cut_short() {
  local n=$1 rc=0
  shift
  (halted "1 1 $((n + 1)) 9" export "$@") || rc=$?
  is 137 $rc
}

test_a_file() {
  status_of 0 ckptfs export "$(big)/ckpt" tensors/w x
  [[ ! -s out && ! -s err ]]
  cmp x "$(big)/w.bin"
  status_of 0 ckptfs export --fqn --jobs=3 "$(big)/ckpt" v "$T/v/" 2>err
  cmp v "$(big)/v.bin"
  [[ $(stat -c '%a %Y' v) == "644 $(stat -c %Y "$(big)/ckpt/.metadata")" ]] || fail "$(stat v)"
  nothing_left_over
}

cases_a_tree() {
  printf '%s\n' "8 ." "3 tensors" "8 npy/" "2 /.ckptfs"
  echo "1 ." | full_only
}
test_a_tree() {
  status_of 0 ckptfs export -q --jobs "$1" "$(many)/ckpt" "$2" x
  [[ ! -s out && ! -s err ]]
  mount_at m "$(many)/ckpt"
  diff -r "m/$2" x
  [[ $(stat -c %a x) == 755 && -z $(find x -type f ! -perm 644) ]]
  diff <(cd "m/$2" && find . -type f -printf '%P %s %Ts\n' | sort) \
    <(cd x && find . -type f -printf '%P %s %Ts\n' | sort)
  nothing_left_over
}

cases_every_kind_of_tensor() { printf '%s\n' plain weird_fqns shapes zstd dtypes mp4_mesh2d; }
test_every_kind_of_tensor() {
  need_fixture "$1"
  status_of 0 ckptfs export "$(fixture "$1")/ckpt" . x
  mount_at m "$(fixture "$1")/ckpt"
  diff -r m x
}

test_the_umask_holds() {
  (umask 077 && ckptfs export "$(big)/ckpt" npy x)
  [[ $(stat -c %a x x/v.npy | xargs) == "700 600" ]]
}

test_dest_is_never_touched() {
  mkdir x
  refused "^ckptfs: export: 'x' exists already: name another DEST$" ckptfs export "$(big)/ckpt" tensors x
  rmdir x
  ln -s nowhere x
  refused "'x' exists already" ckptfs export "$(big)/ckpt" tensors/v x
  refused "'no/x'|directory 'no': No such file" ckptfs export "$(big)/ckpt" tensors/v no/x
  # sshfs gives another error, which is not tested.
  touch "$(printf '%0300d' 0)" 2>err || grep -qi 'name too long' err || return 0
  refused 'name too long' ckptfs export "$(big)/ckpt" tensors/v "$(printf '%0300d' 0)"
  refused 'create .*name too long' ckptfs export "$(big)/ckpt" tensors/v "$(printf '%0250d' 0)"
  refused "^ckptfs: export: DEST is empty: name the file or directory to write$" ckptfs export "$(big)/ckpt" tensors ''
  refused "'/' exists already" ckptfs export "$(big)/ckpt" tensors/v /
  refused "'\.\.' exists already" ckptfs export "$(big)/ckpt" tensors/v ..
  refused "no such file in the tree" ckptfs export "$(big)/ckpt" tensors/nothing y
  refused "export: 300 jobs are too many: at most 256 are possible$" ckptfs export --jobs=300 "$(big)/ckpt" tensors/v y
  [[ $(find . -mindepth 1 ! -name out ! -name err) == ./x ]]
}

test_what_was_not_begun_by_an_export_is_not_touched() {
  mkdir x.partial
  echo mine >x.partial/w
  refused "'x.partial' is there and was not begun by an export" ckptfs export "$(big)/ckpt" tensors x
  [[ $(cat x.partial/w) == mine && ! -e x.partial.state && ! -e x ]]
}

# In a directory such as /tmp, another user can begin an export and mark any bytes as copied.
test_a_copy_of_another_user_is_not_continued() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir -m 1777 s
  big >/dev/null
  (
    trap '' XFSZ
    ulimit -f 8192
    refused "File too large" ckptfs export -q "$(big)/ckpt" tensors s/out
  )
  [[ -s s/out.partial.state && -d s/out.partial ]]
  chown 65534 s/out.partial.state
  refused "'out.partial.state' can have been written by another user \(its owner is 65534\)" \
    ckptfs export "$(big)/ckpt" tensors s/out
  chown 0 s/out.partial.state
  chmod g+w s/out.partial.state
  refused "'out.partial.state' can have been written by another user" ckptfs export "$(big)/ckpt" tensors s/out
  chmod g-w s/out.partial.state
  ln s/out.partial.state s/other
  refused "'out.partial.state' can have been written by another user" ckptfs export "$(big)/ckpt" tensors s/out
  rm s/other
  chown 65534 s/out.partial
  refused "'out.partial' can have been written by another user" ckptfs export "$(big)/ckpt" tensors s/out
  chown 0 s/out.partial
  # Who owns the directory could put anything there.
  chown 65534 s s/out.partial s/out.partial.state
  status_of 0 ckptfs export -q "$(big)/ckpt" tensors s/out
}

test_a_full_disk_is_found_first() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir small
  mount -t tmpfs -o size=20m tmpfs small
  refused "'small/x' needs 35\.. MiB, but only 20\.. MiB are free" ckptfs export "$(big)/ckpt" tensors small/x
  [[ -z $(ls small) ]]
  status_of 0 ckptfs export "$(big)/ckpt" tensors/v small/x
}

test_a_disk_that_fills_up_can_be_emptied() {
  [[ $(id -u) == 0 ]] || skip "not root"
  mkdir small
  mount -t tmpfs -o size=40m tmpfs small
  # As if another process were filling the disk: a limit of which fstatvfs does not know.
  big >/dev/null # without the limit
  (
    ulimit -f 8192 # KiB
    trap '' XFSZ
    refused "'w'?.*(File too large|No space).*the same command resumes the copy" ckptfs export -q "$(big)/ckpt" tensors small/x
  )
  [[ -e small/x.partial && -e small/x.partial.state && ! -e small/x ]]
  status_of 0 ckptfs export "$(big)/ckpt" tensors small/x
  grep -q '^ckptfs: export: resuming: .* of 35\.0 MiB are there$' err || fail "$(cat err)"
  cmp small/x/w "$(big)/w.bin"
  cmp small/x/v "$(big)/v.bin"
  nothing_left_over small
}

test_killed_at_any_moment_it_goes_on() {
  local i ms
  mount_at m "$(many)/ckpt"
  for ((i = 1; i <= 8; i++)); do
    [[ ! -e x ]] || break
    ms=$((RANDOM % 200 + 1))
    echo "$(recorded) units; killed after $ms ms"
    "$CKPTFS" export -q --jobs=$i "$(many)/ckpt" . x &
    sleep "$(printf 0.%03d $ms)"
    kill -KILL $! 2>/dev/null || true
    wait $! || true # it holds the lock until it has ended
  done
  [[ -e x ]] || status_of 0 ckptfs export "$(many)/ckpt" . x
  diff -r m x
  [[ ! -e x.partial ]]
}

# Finished units are neither read nor written again: after bytes of the partial copy have been changed, only finished
# units keep the change.
test_finished_units_are_not_copied_again() {
  local n
  ckptfs export "$(many)/ckpt" tensors want
  cut_short 65 -q --jobs=1 "$(many)/ckpt" tensors x
  n=$(recorded)
  ((n == 65)) || fail "$n units"
  python3 - x.partial <<'END'
import os, sys
for name in os.listdir(sys.argv[1]):
    if name.startswith("layer."):
        with open(f"{sys.argv[1]}/{name}", "r+b") as f:
            byte = f.read(1) or b"?"
            f.seek(0)
            f.write(bytes([byte[0] ^ 0xff]))
END
  status_of 0 ckptfs export --jobs=1 "$(many)/ckpt" tensors x
  grep -qE '^ckptfs: export: resuming: [1-9].* of .* are there$' err || fail "$(cat err)"
  python3 - want x "$n" <<'END'
import os, sys
other = sum(open(f"{sys.argv[1]}/{f}", "rb").read() != open(f"{sys.argv[2]}/{f}", "rb").read()
            for f in os.listdir(sys.argv[1]) if f.startswith("layer."))
assert int(sys.argv[3]) - 12 <= other <= int(sys.argv[3]) and other < 200, (other, sys.argv[3])
END
  nothing_left_over
}

test_units_whose_file_is_gone_are_copied_again() {
  cut_short 65 -q --jobs=1 "$(many)/ckpt" tensors x
  rm x.partial/layer.3
  truncate -s 1 x.partial/layer.5
  rm -f x.partial/layer.7
  ln -s /dev/null x.partial/layer.7
  refused "layer\.7'.*(symbolic|loop|else)" ckptfs export -q --jobs=1 "$(many)/ckpt" tensors x
  rm x.partial/layer.7
  status_of 0 ckptfs export "$(many)/ckpt" tensors x
  mount_at m "$(many)/ckpt"
  diff -r m/tensors x
}

test_two_commands_are_never_mixed() {
  cp -rp "$(many)/ckpt" c
  cut_short 65 -q --jobs=1 c tensors x
  cp x.partial.state before
  refused "'x.partial' was begun with another PATH or other options: remove it" ckptfs export c npy x
  refused "with another PATH or other options" ckptfs export --include='*' c tensors x
  cmp x.partial.state before
  # The cache, the index and the spelling of PATH may be different.
  status_of 0 ckptfs export --cache=1MiB --index=:memory: c ./tensors/ x
  grep -q '^ckptfs: export: resuming: [1-9]' err || fail "$(cat err)"
  rm -rf x
  # Without the partial copy, the state file is ignored.
  cp before x.partial.state
  status_of 0 ckptfs export c npy x
  [[ ! -s err ]]
  nothing_left_over
}

# The unit suite "export" has a case for everything that the state records; this tests that the command passes it all.
cases_what_has_changed_is_copied_again() {
  printf '%s\n' "config another config.json, tokenizer or other asset" "assets another config.json, tokenizer or other asset" \
    "rename renaming rules of other contents" "layout a layout of other contents" \
    "data other data: a data file has changed or been replaced" "metadata other metadata: the checkpoint has been saved again, or is another one" \
    "files files of other names, sizes or paths"
}
test_what_has_changed_is_copied_again() {
  local what=$1 path=tensors args
  shift
  cp -rp "$(many)/ckpt" c
  mkdir d
  echo '{"of": 1}' | tee c/config.json >d/vocab.json
  echo 's/^w$/w.1/' >rules
  printf 'mesh tp=2\nw.* tp:0\n' >mesh
  args=(--assets=d --rename=rules --layout=mesh --jobs=1)
  case $what in
    config) args=(--rename=rules --jobs=1) ;;
    layout) path=ranks/00000 ;;
    files) path=. args=(--include='layer.1*' --jobs=1) ;;
  esac
  cut_short 65 -q "${args[@]}" c $path x
  touch x.partial/stray
  case $what in
    config) echo '{"of": 2}' >c/config.json ;;
    assets) echo '{"of": 2}' >d/vocab.json ;;
    rename) echo 's/^w$/w.2/' >rules ;;
    layout) printf 'mesh tp=2\nw.* tp:1\n' >mesh ;;
    data) # another file with the same name, size and time
      cp -p c/__w_0.distcp new
      printf 'x' | dd of=new bs=1 seek="$(($(stat -c %s new) / 4))" conv=notrunc status=none
      touch -r c/__w_0.distcp new
      mv new c/__w_0.distcp
      ;;
    metadata) touch c/.metadata ;;
    files) mv c elsewhere && ln -s elsewhere c ;; # info.json has the path
  esac
  status_of 0 ckptfs export -q "${args[@]}" c $path x
  is "ckptfs: export: starting over: 'x.partial' was begun with $*" "$(cat err)"
  ckptfs export "${args[@]}" c $path want
  diff -r want x
  nothing_left_over
}

test_a_second_export_to_the_same_place_is_refused() {
  halted "1 1 2 19" export -q --jobs=1 "$(many)/ckpt" . x &
  wait_until is_stopped $!
  refused "^ckptfs: export: another export to 'x' is running$" ckptfs export -q "$(many)/ckpt" . x
  [[ -e x.partial.state ]]
  kill -CONT $!
  wait $!
  nothing_left_over
}

test_what_cannot_be_read_is_named() {
  local p
  big_copy c
  rm c/__v_1.distcp
  refused "__v_1\.distcp" ckptfs export c tensors x
  # These are refused before anything is copied.
  for p in . tensors npy; do
    refused "export: 'v' cannot be read: data file '__v_1\.distcp' is missing; leave out with --exclude what" \
      ckptfs export --allow_missing c "$p" x
  done
  nothing_left_over
  refused "^ckptfs: export: tensor 'v' cannot be read: .*__v_1\.distcp" ckptfs export --allow_missing c tensors/v x
  status_of 0 ckptfs export --allow_missing c tensors/w w
  cmp w "$(big)/w.bin"
  rm -f x.partial*
  status_of 0 ckptfs export --allow_missing --exclude=v c tensors x
  [[ $(ls x) == w ]]
}

test_a_terminal_has_a_bar_and_a_pipe_has_none() {
  status_of 0 ckptfs export "$(many)/ckpt" npy x
  [[ ! -s err ]]
  # Nothing is drawn in the first second, so the export stops itself (halt.c) and is continued after it.
  python3 - "$(once halt make_halt)/halt.so" "$CKPTFS" export --jobs=1 "$(many)/ckpt" . y <<'END'
import os, pty, re, signal, sys, time
pid, fd = pty.fork()
if not pid:
    how = {"HALT": "1 1 2 19", "LD_PRELOAD": sys.argv[1]}
    how["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")
    os.execve(sys.argv[2], sys.argv[2:], os.environ | how)
assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
time.sleep(1.1)
os.kill(pid, signal.SIGCONT)
out = b""
try:
    while data := os.read(fd, 4096):
        out += data
except OSError:
    pass
assert os.waitpid(pid, 0)[1] == 0, out
assert re.search(rb"export .*\[.*#*-*.*\].* [0-9.]+ [KMG]?i?B/s", out), out
END
  nothing_left_over
}

test_a_tensor_that_cannot_be_read_is_named_once() {
  local at
  copy_of zstd c
  at=$(ckptfs info c zeros | sed -n 's/.* at \([0-9]*\), .*/\1/p')
  printf '%0400d' 0 | dd of=c/__0_0.distcp bs=1 seek=$((at + 100)) conv=notrunc status=none
  refused "^ckptfs: export: tensor 'zeros', item at $at of .*; the same command resumes the copy, unless the checkpoint has changed$" \
    ckptfs export -q c npy x
}

test_an_interruption_says_how_it_goes_on() {
  local signal pid rc=0
  for signal in INT TERM HUP; do
    rc=0
    env --default-signal="$signal" HALT="1 1 2 19" LD_PRELOAD="$(once halt make_halt)/halt.so" \
      ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}" \
      "$CKPTFS" export --jobs=1 "$(many)/ckpt" . x 2>err &
    pid=$!
    wait_until is_stopped "$pid"
    kill -"$signal" "$pid"
    kill -CONT "$pid"
    wait "$pid" || rc=$?
    is $((128 + $(kill -l "$signal"))) "$rc"
    is "ckptfs: export: interrupted; the same command resumes the copy" "$(tail -1 err)"
  done
  ckptfs export -q --jobs=1 "$(many)/ckpt" . x
  nothing_left_over
}

run_suite "$@"
