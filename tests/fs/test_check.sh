#!/bin/bash
# scripts/check.sh, with suites of our own in a tree of our own: what fails the run, and what is forgiven.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "${0%/*}/lib.sh"
long="what_passes_the_second_time_is_unsteady a_unit_test_that_passes_the_second_time_is_unsteady \
  daemons_left_over_are_not_forgiven a_skipped_test_fails_in_ci_only what_fails_twice_fails"

# Makes a tree with a unit suite of two tests, which runs $UNIT_DOES first, and with test_mounts.sh, whose tests come
# from stdin, indented so that they do not count as tests of this file. calls() prints how often it has been called.
prepare() {
  mkdir -p tree/{scripts,build/x/tests,tests/fs} tmp
  cp "$HERE/../../scripts/check.sh" tree/scripts
  cp "$HERE/lib.sh" tree/tests/fs
  cp "$(type -P sleep)" tree/build/x/ckptfs
  printf '\tX(one)\n' >tree/tests/suites.h
  cat >tree/tests/fs/test_mounts.sh <<END
. "\$(dirname "\$0")/lib.sh"
calls() { echo >>$T/calls; wc -l <$T/calls; }
$(sed 's/^  //')
run_suite "\$@"
END
  cat >tree/build/x/tests/unit <<END
#!/bin/bash
calls() { echo >>$T/calls; wc -l <$T/calls; }
result=P
${UNIT_DOES:-}
echo "t.c:1:P:core:steady:0: Passed"
echo "t.c:2:\$result:core:other:0: because"
[[ \$result == P ]] && echo "100%: Checks: 2, Failures: 0, Errors: 0" && exit
echo "50%: Checks: 2, Failures: 1, Errors: 0"
exit 1
END
  chmod +x tree/tests/fs/test_mounts.sh tree/build/x/tests/unit
}
# check [VARIABLE=VALUE]...: its exit status in ./rc, its last lines in ./end
check() {
  local rc=0
  env -u MOST_CASES -u ONE_IN -u UNIT -u MOUNTS -u RETRY -u CI -u SCRATCH CHECK_FULL=1 TMPDIR="$T/tmp" "$@" \
    tree/scripts/check.sh build/x >out 2>&1 || rc=$?
  echo "$rc" >rc
}
# ended STATUS LAST [WORDS]...: the status, the last line, and how many lines must begin with words, as in "2 FAILED"
ended() {
  local words
  [[ $(<rc) == "$1" && $(tail -n 1 out) == "$2" ]] || fail "$(<rc): $(cat out)"
  shift 2
  for words; do
    is "${words%% *}" "$(grep -c "^${words#* }" out)"
  done
}

test_what_passes_the_second_time_is_unsteady() {
  prepare <<'END'
  test_good() { :; }
  test_first() { (($(calls) > 1)) || fail "not yet"; }
  cases_first() { echo "with words"; }
END
  check RETRY=1
  ended 0 "4 passed, 0 failed" "1 UNSTEADY  test_mounts: first \[with words\]$" "1 once more: mounts mounts" \
    "1 FAILED " "1         FAIL: not yet" "2 ok      test_mounts: good" "1 t.c:1:P"
  rm calls
  check
  ended 1 "3 passed, 1 failed" "0 UNSTEADY" "0 once more" "2 FAILED  test_mounts: first"
}

# shellcheck disable=SC2016 # what the fake suite expands
test_a_unit_test_that_passes_the_second_time_is_unsteady() {
  UNIT_DOES='(($(calls) > 1)) || result=F' prepare <<<'  test_good() { :; }'
  check RETRY=1
  ended 0 "3 passed, 0 failed" "1 UNSTEADY  one: core:other:0$" "1 once more: unit one"
  rm calls
  UNIT_DOES='(($(calls) > 1)) || kill -9 $$' prepare <<<'  test_good() { :; }'
  check RETRY=1
  ended 0 "3 passed, 0 failed" "1 UNSTEADY  one: unit one: exit status 137$"
}

test_what_fails_twice_fails() {
  UNIT_DOES='result=E' prepare <<'END'
  test_good() { :; }
  test_first() { (($(calls) > 1)) || fail "not yet"; }
  test_never() { fail "never"; }
END
  check RETRY=1
  ended 1 "3 passed, 2 failed" "1 UNSTEADY  test_mounts: first$" "3 FAILED  test_mounts: never" "2 t.c:2:E"
}

test_what_is_not_reached_the_second_time_fails() {
  prepare <<'END'
  test_first() { sed -i 's/^test_first/gone/' "$HERE/test_mounts.sh"; fail "not yet"; }
END
  check RETRY=1
  ended 1 "2 passed, 1 failed" "0 UNSTEADY" "1 FAILED  mounts mounts: test_mounts: first: not reached"
}

test_more_than_three_failures_are_no_matter_of_luck() {
  prepare <<'END'
  test_first() { (($(calls) > 4)) || fail "not yet"; }
  cases_first() { seq 4; }
END
  check RETRY=1
  ended 1 "2 passed, 4 failed" "0 UNSTEADY" "0 once more"
}

test_reports_of_sanitizers_are_not_forgiven() {
  prepare <<'END'
  test_first() { (($(calls) > 1)) || { echo "a report" >"${ASAN_OPTIONS##*log_path=}.1"; fail "not yet"; }; }
END
  check RETRY=1
  ended 1 "3 passed, 1 failed" "1 UNSTEADY" "1 FAILED  sanitizer:" "1 a report"
}

test_daemons_left_over_are_not_forgiven() {
  prepare <<'END'
  test_first() { (($(calls) > 1)) || { setsid "$CKPTFS" 1000 & fail "not yet"; }; }
END
  check RETRY=1
  ended 1 "3 passed, 1 failed" "1 UNSTEADY" "1 FAILED  daemons that do not end: [0-9]*$"
}

test_a_skipped_test_fails_in_ci_only() {
  prepare <<<'  test_not_here() { skip "because"; }'
  check RETRY=1
  ended 0 "2 passed, 0 failed" "2 skipped test_mounts: not here (because)"
  check RETRY=1 CI=true
  ended 1 "2 passed, 1 failed" "0 once more"
}

run_suite "$@"
