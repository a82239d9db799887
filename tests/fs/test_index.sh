#!/bin/bash
# A malicious chunk index next to a checkpoint (planted.py): whatever it contains, it is rebuilt, and users of the
# checkpoint notice nothing. It costs little memory and CPU time.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="a_lock_that_is_never_given_back what_lies_beside_an_index_stays_as_it_is shuffled_pages_give_no_other_bytes"

planted() { python3 "$HERE/planted.py" "$@"; }

# within COMMAND...: its peak memory and its CPU time must be small. They are measured, because with a memory limit an
# index that needs too much would be rebuilt as well, and nobody would notice.
within() {
  local mib=64 seconds=3
  [[ ${VARIANT:-release} == release ]] || mib=1000 seconds=30
  python3 -c 'import resource, subprocess, sys
mib, seconds, *command = sys.argv[1:]
def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) * 5, int(seconds) * 5))
    if int(mib) < 1000:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
status = subprocess.run(command, preexec_fn=limit).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
if status:
    sys.exit(f"status {status}")
if used.ru_maxrss > int(mib) << 10:
    sys.exit(f"{used.ru_maxrss} KiB of memory")
if used.ru_utime + used.ru_stime > int(seconds):
    sys.exit(f"{used.ru_utime + used.ru_stime} s of CPU time")' $mib $seconds "$@"
}

# A checkpoint c with a good index beside it, and a copy of the index, `good`.
with_index() {
  cp -r "$(zoo)" c
  ckptfs index c --index=c/.ckptfs-index.sqlite >/dev/null
  is "$T/c/.ckptfs-index.sqlite" "$(ckptfs index --print c)"
  cp c/.ckptfs-index.sqlite good
}
plant() { cp --sparse=always "$1" c/.ckptfs-index.sqlite; }

COMMANDS=("info c" "ls c" "cat c tensors/model.layers.0.q.weight" "check --data c")

cases_a_planted_index_is_built_again() { planted | grep -vx many_tables && echo many_tables | full_only; }
test_a_planted_index_is_built_again() {
  local command
  with_index
  cp good bad
  planted "$@" bad
  for command in "${COMMANDS[@]}"; do
    plant good
    # shellcheck disable=SC2086 # words
    ckptfs $command >before
    plant bad
    # shellcheck disable=SC2086 # words
    within "$CKPTFS" $command >after 2>said || fail "$command: $(cat said)"
    is "" "$(cat said)"
    cmp before <(sed 's/ (built just now)//' after)
  done
}

# limited KIB COMMAND...: no file may become larger, which SIGXFSZ would report if it were not ignored
limited() { (trap '' XFSZ && ulimit -f "$1" && shift && exec "$CKPTFS" "$@"); }
test_where_the_cache_is_full_memory_will_do() {
  mkdir cache
  export XDG_CACHE_HOME=$T/cache
  ckptfs ls --index=:memory: "$(zoo)" >want
  limited 4 ls "$(zoo)" >got
  cmp got want
  limited 4 index "$(zoo)" 2>said && fail "kept"
  grep -q 'index: it cannot be kept: .*: File too large; name a file with --index=PATH$' said || fail "$(cat said)"
  is "" "$(find cache -type f)"
}

# A WAL or a journal is ignored, and certainly not rolled back into the index.
cases_what_lies_beside_an_index_stays_as_it_is() { printf '%s\n' journal_beside log_beside; }
test_what_lies_beside_an_index_stays_as_it_is() {
  with_index
  ckptfs ls c >before
  planted "$1" c/.ckptfs-index.sqlite
  [[ $1 != journal_beside ]] || cmp good c/.ckptfs-index.sqlite
  sha256sum c/.ckptfs-index.sqlite-* >beside
  [[ -s beside ]]
  within "$CKPTFS" ls c >after
  cmp before after
  sha256sum -c --quiet beside
  cmp good c/.ckptfs-index.sqlite # unchanged or rebuilt
}

test_shuffled_pages_give_no_other_bytes() {
  local seed n=10
  [[ -z ${CHECK_FULL:-} || ${VARIANT:-release} != release ]] || n=100
  with_index
  ckptfs cat c tensors/model.layers.0.q.weight >before
  for ((seed = 0; seed < n; seed++)); do
    plant good
    planted shuffled $seed c/.ckptfs-index.sqlite
    within "$CKPTFS" cat c tensors/model.layers.0.q.weight >after || fail "seed $seed"
    cmp before after || fail "seed $seed"
  done
}

# In a run, the daemon opens a checkpoint when somebody enters its directory.
cases_a_planted_index_leaves_a_mount_alone() {
  printf '%s\n' 'bomb metadata_file' 'bomb sqlite_autoindex_metadata_file_1' 'bomb schema' 'chain directory'
}
test_a_planted_index_leaves_a_mount_alone() {
  local pid peak
  with_index
  mkdir run
  mv c run/step-1
  planted "$@" run/step-1/.ckptfs-index.sqlite
  aged run
  mount_at m run
  ckptfs cat "$(zoo)" tensors/model.ids >want
  cmp want m/step-1/tensors/model.ids
  [[ ${VARIANT:-release} == release ]] || return 0
  pid=$(daemon_of m)
  peak=$(awk '$1 == "VmHWM:" { print $2 }' "/proc/$pid/status")
  ((peak < 64 << 10)) || fail "$peak KiB of memory"
}

# A checkpoint of torch 1.12: the index records what is in the data files, and which of them did not exist yet.
file_of() { ckptfs info c "$1" | grep -oE '[0-9a-f]{64}' | head -1; }
test_files_that_arrive_later_are_found() {
  local name
  copy_of old_112 c
  aged c
  mkdir away
  for name in c/*; do
    mv "$name" away
  done
  status_of 1 ckptfs check c
  grep -q 'its file is missing' out
  mv away/* c
  status_of 0 ckptfs check c
  ckptfs info c | grep -E '^index .*sqlite$' >found || fail "built again"
  is float16 "$(ckptfs ls -l c | awk '$NF == "half" { print $1 }')"
  cp "c/$(file_of parameter)" "c/$(file_of half)"
  is float32 "$(ckptfs ls -l c | awk '$NF == "half" { print $1 }')"
}

make_no_locks() { ${CC:-cc} -D_GNU_SOURCE -O1 -shared -fPIC -o no_locks.so "$HERE/no_locks.c" -ldl; }

# Lustre without -o flock has neither kind of lock: ENOSYS. NFS without lockd: ENOLCK.
cases_a_file_system_without_locks() { printf '%s\n' FLOCK\ {37,38,95} FCNTL\ {37,38,95}; }
test_a_file_system_without_locks() {
  local ckpt so
  case ${VARIANT:-release} in asan | tsan) return 0 ;; esac # their library must be loaded first
  ckpt=$(zoo)
  so=$(once no_locks make_no_locks)/no_locks.so
  ckptfs sum "$ckpt" -o index=:memory: >a
  export XDG_CACHE_HOME=$PWD/cache "NO_$1=$2"
  LD_PRELOAD=$so ckptfs sum "$ckpt" >b 2>err
  cmp a b
  if grep -v '^LLVM Profile ' err; then fail "$(cat err)"; fi # counters of coverage need locks, too
  [[ -z $(find cache -name '*.lock') ]] || fail "$(find cache)"
  LD_PRELOAD=$so ckptfs stat --resume=state "$ckpt" >c 2>err || fail "$(cat err)"
  LD_PRELOAD=$so ckptfs export -q "$ckpt" tensors copied 2>err || fail "$(cat err)"
  LD_PRELOAD=$so ckptfs reshard -q "$ckpt" saved 2>err || fail "$(cat err)"
  [[ ! -e state && -d copied && -e saved/.metadata ]] || fail "$(find .)"
}

is_locked() { ! flock -n "$1" true; }

# Whoever builds the index may have been stopped.
test_a_lock_that_is_never_given_back() {
  local path holder
  cp -r "$(big)/ckpt" c
  path=$(ckptfs index --print c)
  rm "$path"
  flock "$path.lock" sleep 600 &
  holder=$!
  wait_until is_locked "$path.lock"
  timeout 120 "$CKPTFS" ls c | cmp - <(printf 'v\nw\n')
  refused "another process has been building the chunk index '.*/x' for [0-9]* seconds: wait until" \
    flock x.lock timeout 120 "$CKPTFS" ls c --index=x
  # shellcheck disable=SC2046 # numbers
  kill $holder $(ps -o pid= --ppid $holder)
}

# A hub, or a mirror that says the same of its file and has another: hub PORTFILE [lies]
hub() {
  python3 - "$@" <<'END' &
import http.server, json, os, struct, sys
ends = [[4, 8], [0, 4]] if sys.argv[2:] else [[0, 4], [4, 8]]
head = json.dumps({n: {"dtype": "F32", "shape": [1], "data_offsets": e} for n, e in zip("ab", ends)}).encode()
body = struct.pack("<Q", len(head)) + head + struct.pack("<2f", 1, 2)

class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        status, text, fields = 404, b"", {}
        if "/revision/" in self.path:
            status, text = 200, json.dumps({"sha": "a" * 40}).encode()
        elif "/tree/" in self.path:
            entry = {"type": "file", "path": "model.safetensors", "size": len(body), "oid": "b" * 40}
            status, text = 200, json.dumps([entry]).encode()
        elif self.path.endswith("/model.safetensors"):
            first, last = map(int, self.headers["Range"][6:].split("-"))
            status, text = 206, body[first : last + 1]
            fields = {"ETag": '"%s"' % ("b" * 40), "Content-Range": f"bytes {first}-{last}/{len(body)}"}
        self.send_response(status)
        for name, value in {**fields, "Content-Length": len(text)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(text)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
with open(sys.argv[1] + ".new", "w") as f:
    print(f"http://127.0.0.1:{server.server_port}", file=f)
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
END
  pids+=($!)
}

# The address and all that identifies the file are the same.
test_an_index_of_one_endpoint_is_not_for_another() {
  local pids=() where
  [[ -x ${CKPTFS%/*}/ckptfs-fetch ]] || skip "there is no ckptfs-fetch"
  hub honest
  hub liar lies
  wait_until test -e honest -a -e liar
  for where in "" index=x.sqlite; do
    for who in liar honest liar honest; do
      ckptfs cat hf://org/name tensors/a -o "endpoint=$(cat $who),cache_dir=none${where:+,$where}" >"a.$who"
    done
    is 0000803f "$(xxd -p a.honest)"
    is 00000040 "$(xxd -p a.liar)"
  done
  kill "${pids[@]}"
}

run_suite "$@"
