# ckptfs - see README.md. `make help` lists the targets.

# Use all CPUs, unless -j says how many.
ifeq ($(filter -j% --jobserver%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

PREFIX    ?= /usr/local
BINDIR    ?= $(PREFIX)/bin
LIBDIR    ?= $(PREFIX)/lib
# For ckptfs-fetch, which is not started by hand.
LIBEXECDIR ?= $(PREFIX)/libexec/ckptfs
INCDIR    ?= $(PREFIX)/include
MANDIR    ?= $(PREFIX)/share/man
# Where Debian's Python looks for modules.
PYDIR     ?= $(PREFIX)/lib/$(if $(filter /usr,$(PREFIX)),python3,$(shell /usr/bin/python3 -c \
	'import sys; print("python%d.%d" % sys.version_info[:2])' || echo python3))/dist-packages
COMPDIR   ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR    ?= $(PREFIX)/share/zsh/site-functions
FISHDIR   ?= $(PREFIX)/share/fish/vendor_completions.d
# mount(8) looks for mount.TYPE in /sbin only.
HELPERDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/sbin,$(PREFIX)/sbin)
VARIANT   ?= release
# MPI=1: support ranks that are processes started by mpirun (Open MPI).
MPI       ?= 0
WITH_MPI  := $(filter 1,$(MPI))

# LIB_ONLY=1: libckpt without the program, which needs neither FUSE nor libseccomp.
LIB_ONLY  ?= 0
WITH_FS   := $(if $(filter 1,$(LIB_ONLY)),,1)
# REMOTE=0: no ckptfs-fetch, the program that accesses object stores and needs libcurl and Expat.
REMOTE    ?= $(if $(WITH_FS),1,0)
WITH_FETCH := $(filter 1,$(REMOTE))

VERSION   := 0.5.1
BUILD     := build/$(VARIANT)

# A cross compiler's prefix, as in CROSS_COMPILE=aarch64-linux-gnu-; each tool can also be named.
CROSS_COMPILE ?=
ifeq ($(origin CC),default)
CC        := $(CROSS_COMPILE)gcc
endif
ifeq ($(origin AR),default)
AR        := $(CROSS_COMPILE)ar
endif
ifeq ($(origin LD),default)
LD        := $(CROSS_COMPILE)ld
endif
OBJCOPY    ?= $(CROSS_COMPILE)objcopy
PKG_CONFIG ?= $(CROSS_COMPILE)pkg-config
LDCONFIG   ?= ldconfig

# Debian 11 has no pkg-config files for these two; the compiler finds them in its own directories.
HASH      := \#
unlisted   = $(shell $(PKG_CONFIG) --exists $(1) 2>/dev/null || { echo '$(HASH)include <$(2)>' | $(CC) -E - >/dev/null 2>&1 && echo $(1); })
UNLISTED  := $(call unlisted,blosc,blosc.h) $(call unlisted,libdeflate,libdeflate.h)
# The names that pkg-config knows; scripts/setup.sh lists the Debian packages.
CORE_PKGS := $(filter-out $(UNLISTED),sqlite3 libzstd zlib blosc libxxhash libdeflate nettle $(if $(WITH_MPI),ompi-c))
FS_PKGS   := $(if $(WITH_FS),fuse3 libseccomp)
FETCH_PKGS := $(if $(WITH_FETCH),libcurl expat)
PKGS      := $(FS_PKGS) $(FETCH_PKGS) $(CORE_PKGS)

# A build installs nothing: it names what is missing. These targets need no library.
NO_BUILD  := clean help setup dist deb wheel layers lint format uninstall demo fuzz \
	reproduce check check-full check-asan check-tsan check-valgrind check-filesystems coverage
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(NO_BUILD),$(MAKECMDGOALS)),all),)
MISSING   := $(shell $(PKG_CONFIG) --version >/dev/null 2>&1 || echo '$(PKG_CONFIG)'; \
	for p in $(PKGS); do $(PKG_CONFIG) --exists $$p 2>/dev/null || echo $$p; done)
ifneq ($(MISSING),)
$(error not found by $(PKG_CONFIG): $(strip $(MISSING)). Install the development packages of these libraries; \
on Debian and Ubuntu `make setup` does that, and `scripts/setup.sh names` prints their names)
endif
endif

WARN := -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Wstrict-prototypes \
	-Wmissing-prototypes -Wpointer-arith -Wcast-qual -Wwrite-strings -Wformat=2 -Wundef -Wvla \
	-Wimplicit-fallthrough $(if $(WERROR),-Werror)
HARDEN := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection -fPIC
SAN   := -fno-omit-frame-pointer -fno-sanitize-recover=all -fPIC
FLAGS_release := -O2 -g $(HARDEN)
FLAGS_asan    := -O1 -g -fsanitize=address,undefined -DCHECK_LOCKS $(SAN)
FLAGS_valgrind := -O1 -g -fno-omit-frame-pointer
FLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -DCHECK_LOCKS $(SAN)
# For clang. The counters are a file that a program maps when it starts, so it counts however it ends: confined, killed
# or by _exit. The path is compiled in, for programs that tests start in another environment.
PROFILE       := $(CURDIR)/build/coverage/profile
COVERAGE_CC   ?= clang
FLAGS_coverage := -O1 -DNDEBUG -fprofile-instr-generate=$(PROFILE)/%m%c.profraw -fcoverage-mapping -mllvm -runtime-counter-relocation \
	$(HARDEN)
# Neither the tests themselves nor their assertions are of interest.
TESTFLAGS_coverage := -fno-profile-instr-generate -fno-coverage-mapping -UNDEBUG
FLAGS_tsan    := -O1 -g -fsanitize=thread -DCHECK_LOCKS $(SAN)
LINK_release  := -pie -Wl,-z,relro,-z,now
LINK_asan     := -pie -fsanitize=address,undefined
LINK_fuzz     := -pie -fsanitize=fuzzer,address,undefined
LINK_tsan     := -pie -fsanitize=thread
LINK_coverage := -pie -fprofile-instr-generate -Qunused-arguments
# For programs without counted objects: the counters' run time would complain on their stderr.
UNCOUNTED_coverage := -noprofilelib
LINKLIB_release := -Wl,-z,relro,-z,now,-z,defs
LINKLIB_asan    := -fsanitize=address,undefined
LINKLIB_tsan    := -fsanitize=thread
LINKLIB_coverage := -fprofile-instr-generate -Qunused-arguments

PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags $(filter-out ompi-c,$(PKGS))))
MPI_CFLAGS := $(if $(WITH_MPI),-DCKPTFS_MPI $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags ompi-c)))
CORE_FOUND := $(shell $(PKG_CONFIG) --libs $(CORE_PKGS)) $(patsubst %,-l%,$(UNLISTED:lib%=%))
CORE_LIBS  := $(CORE_FOUND) -lm
PKG_LIBS   := $(shell $(PKG_CONFIG) --libs $(FS_PKGS)) $(CORE_LIBS) -ldl
FETCH_LIBS := -Wl,--as-needed $(if $(WITH_FETCH),$(shell $(PKG_CONFIG) --libs $(FETCH_PKGS))) $(CORE_LIBS)
CK_CFLAGS   = $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags check jansson))
CK_LIBS     = $(shell $(PKG_CONFIG) --libs check jansson)
CPPFLAGS_  := -D_GNU_SOURCE -DCKPTFS_VERSION='"$(VERSION)"' -DFUSE_USE_VERSION=314 -Icore -Icore/include -Ifs
# Binaries contain no path of this machine: the same sources give the same bytes anywhere.
CFLAGS_    := -std=gnu17 -ffile-prefix-map=$(CURDIR)=. -fvisibility=hidden -pthread $(FLAGS_$(VARIANT)) $(WARN)

# ckptfs-fetch; no other program contains it or links its libraries.
FETCH := $(sort $(wildcard core/remote/*.c))
FETCH_PROGRAM := $(if $(WITH_FETCH),$(BUILD)/ckptfs-fetch)
CORE := $(filter-out $(FETCH),$(sort $(wildcard core/*/*.c core/*/*/*.c)))
FS   := $(sort $(wildcard fs/*/*.c))
TEST := tests/runner.c tests/fault.c tests/disk.c $(sort $(wildcard tests/core/*.c tests/core/*/*.c tests/core/*/*/*.c \
	tests/fs/*/*.c))
obj   = $(patsubst %.c,$(BUILD)/%.o,$(1))
V_   := $(if $(V),,@)
comma := ,
# The functions that tests/fault.c can make fail.
WRAP := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc reallocarray free strdup strndup \
	posix_memalign asprintf __asprintf_chk ZSTD_createDCtx ZSTD_createCCtx XXH3_createState inflateInit2_ regcomp \
	seccomp_init seccomp_rule_add seccomp_load \
	open __open_2 openat fopen opendir fdopendir memfd_create syscall close \
	read __read_chk pread getline __getdelim write pwrite ftruncate fallocate futimens fsync \
	mkdir mkdirat symlinkat rename renameat renameat2 unlink unlinkat \
	stat lstat fstat fstatat statx statfs fstatvfs access faccessat readdir readlinkat realpath getcwd \
	flock fcntl mmap mincore pthread_create \
	$(addprefix sqlite3_,open_v2 prepare_v2 exec step blob_open blob_reopen blob_read close errcode extended_errcode errmsg))

# libckpt: its functions are marked CKPT_API, its headers include each other and nothing else of ours.
HEADERS := $(wildcard core/include/ckptfs/*.h)
PYTHON_PACKAGE := $(wildcard scripts/python/ckptfs/*.py) scripts/python/ckptfs/py.typed
# The manual pages of the program; ckpt(3) is the library's.
MAN     := $(wildcard fs/man/*.[1-9])
# The name under which programs load the library. Structures may change with each 0.x, and later with each X.
SONAME  := libckpt.so.$(shell echo $(VERSION) | sed -E 's/^(0\.[0-9]+|[0-9]+).*/\1/')

all: lib $(if $(WITH_FS),program) $(FETCH_PROGRAM) $(if $(WITH_FETCH),$(call obj,$(FETCH)))
# Compiles everything and links nothing, to see another compiler's warnings.
compile: $(call obj,$(CORE) $(FETCH) $(FS))
lib: $(BUILD)/$(SONAME) $(BUILD)/libckpt.a
program: $(BUILD)/ckptfs $(FETCH_PROGRAM)
	$(V_)ln -sfn $(VARIANT)/ckptfs build/ckptfs

# $(BUILD)/NAME.list holds the list of a program's or library's sources, so that removing one causes a new link.
objects = $(filter %.o %.a,$^)

$(BUILD)/libcore.a: $(call obj,$(CORE)) $(BUILD)/core.list
	$(V_)rm -f $@ && $(AR) rcs $@ $(objects)

$(BUILD)/$(SONAME): $(call obj,$(CORE)) $(BUILD)/core.list
	$(V_)$(CC) -shared -Wl,-soname,$(SONAME) $(CFLAGS_) $(CFLAGS) $(LINKLIB_$(VARIANT)) $(LDFLAGS) -o $@ $(objects) $(CORE_LIBS)

# A single object, in which only the library's public functions are global.
$(BUILD)/libckpt.a: $(call obj,$(CORE)) $(BUILD)/core.list
	$(V_)$(LD) -r -o $(@:.a=.o) $(objects) && $(OBJCOPY) --localize-hidden $(@:.a=.o) && rm -f $@ && \
	  $(AR) rcs $@ $(@:.a=.o) && rm -f $(@:.a=.o)

$(BUILD)/ckptfs: $(call obj,$(FS)) $(BUILD)/libcore.a $(BUILD)/fs.list
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(LDFLAGS) -o $@ $(objects) $(PKG_LIBS)

$(BUILD)/ckptfs-fetch: $(call obj,$(FETCH)) $(BUILD)/libcore.a $(BUILD)/fetch.list
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(LDFLAGS) -o $@ $(objects) $(FETCH_LIBS)

# ckptfs-fetch for tests: directories of this machine in place of stores, and calls that fail on command.
DIR_WRAP := $(patsubst %,-Wl$(comma)--wrap=%,main malloc calloc realloc strdup mmap pthread_create fstat fstatat fstatvfs \
	fstatfs ftruncate posix_fallocate mkdir mkdirat memfd_create eventfd socketpair pipe2 dup2 fork pread pwrite fdopendir open openat)
$(BUILD)/tests/dir-fetch: $(call obj,tests/fetch/dir_store.c $(patsubst %,core/remote/%.c,depot depot_blocks depot_evict depot_room fetch_main sched seal server server_fetch server_files server_jobs upload url writes)) \
  $(BUILD)/libcore.a
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(LDFLAGS) $(DIR_WRAP) -o $@ $(objects) $(FETCH_LIBS)

# The directory in which libckpt looks for ckptfs-fetch.
$(BUILD)/core/source/remote_fetcher.o: private CPPFLAGS_ += -DCKPTFS_LIBEXECDIR='"$(LIBEXECDIR)"'
$(BUILD)/core/source/remote_fetcher.o: $(BUILD)/libexecdir

# The only objects that depend on MPI.
MPI_OBJECTS := $(call obj,core/comm/comm_mpi.c tests/core/comm/test_comm.c tests/mpi/mpi_comm.c)
$(MPI_OBJECTS): private CPPFLAGS_ += $(MPI_CFLAGS)
$(MPI_OBJECTS): $(BUILD)/mpi

$(BUILD)/tests/unit: $(call obj,$(TEST) $(filter-out %/main.c,$(FS)) $(filter-out %/fetch_main.c,$(FETCH))) $(BUILD)/libcore.a $(BUILD)/tests.list
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(WRAP) $(LDFLAGS) -o $@ $(objects) $(CK_LIBS) $(PKG_LIBS) $(FETCH_LIBS)

# Fuzz targets. Replayed over their corpora by `make check` with any compiler, and fuzzed by clang.
FUZZ := $(filter-out $(if $(WITH_FETCH),,fuzz_remote),$(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_MAIN := $(if $(filter fuzz,$(VARIANT)),,$(BUILD)/tests/fuzz/standalone.o)
$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(FUZZ_MAIN) $(BUILD)/libcore.a
	@mkdir -p $(@D)
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(FUZZ_LINK) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(CK_LIBS) $(PKG_LIBS) $(FUZZ_LIBS)

# The network of ckptfs-fetch is the target itself.
$(BUILD)/fuzz/fuzz_remote: $(call obj,$(filter-out %/fetch_main.c,$(FETCH)))
$(BUILD)/fuzz/fuzz_remote: FUZZ_LINK := $(patsubst %,-Wl$(comma)--wrap=%,http_exchange http_start http_cancel net_retry_ms)
$(BUILD)/fuzz/fuzz_remote: FUZZ_LIBS = $(FETCH_LIBS)

# What scripts/bench.py runs.
$(BUILD)/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libcore.a
	@mkdir -p $(@D)
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)

# What the suites on mounts ask the kernel.
$(BUILD)/tests/syscalls: $(call obj,$(wildcard tests/fs/syscalls*.c))
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(UNCOUNTED_$(VARIANT)) $(LDFLAGS) -o $@ $^
$(BUILD)/tests/random_reads: $(call obj,tests/fs/random_reads.c)
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(UNCOUNTED_$(VARIANT)) $(LDFLAGS) -o $@ $^

# The proxy of tests/net, with latency, bandwidth and faults.
$(BUILD)/tests/proxy: $(call obj,tests/net/proxy.c)
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(UNCOUNTED_$(VARIANT)) $(LDFLAGS) -o $@ $^

# A program for mpirun that tests ranks which are processes.
$(BUILD)/tests/mpi_comm: $(call obj,tests/mpi/mpi_comm.c) $(BUILD)/libcore.a
	$(if $(WITH_MPI),,$(error MPI=1 builds it))
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)

# Programs of the suites on real mounts: a file system that fails on purpose, a reader.
FSPROGS := badfs soak without
$(patsubst %,$(BUILD)/tests/%,$(FSPROGS)): $(BUILD)/tests/%: $(BUILD)/tests/fs/%.o
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(UNCOUNTED_$(VARIANT)) $(LDFLAGS) -o $@ $^ $(PKG_LIBS)

# No fused multiply-add, because llama-quantize's results are made without it. -Wno-psabi: the vectors are wider than
# the default of x86-64, which changes how functions pass them, but no function does.
BLOCKS := $(patsubst %,$(BUILD)/core/codec/%.o,blocks_32 blocks_256 blocks_decode)
$(BUILD)/core/read/derived/dequant.o $(BUILD)/core/read/derived/dequant_flat.o $(BLOCKS) $(BUILD)/tests/core/codec/test_blocks.o: CFLAGS_ += -ffp-contract=off -Wno-psabi

# Operations are those of torch, in its order: only what the source fuses is fused. Setting a few registers to 0 must
# not become a call of memset; clang does not know the option.
BLEND := $(BUILD)/core/codec/blend.o
$(BLEND): CFLAGS_ += -ffp-contract=off $(if $(findstring clang,$(CC)),,-fno-tree-loop-distribute-patterns)

# Tests start this instead of Python, very often: so it has no libraries and no sanitizers.
$(BUILD)/tests/quick_python: tests/fs/quick_python.c
	@mkdir -p $(@D)
	$(V_)$(CC) -std=gnu17 -D_GNU_SOURCE -O2 $(WARN) -o $@ $<

# At -O2 gcc 12 vectorises only loops that never leave elements over.
$(BUILD)/core/codec/arith.o $(BUILD)/core/codec/cast.o $(BUILD)/core/codec/fp8.o $(BUILD)/core/codec/hist.o \
  $(BUILD)/core/codec/q8_0.o $(BUILD)/core/codec/tally.o $(BLOCKS) $(BLEND): CFLAGS_ += -O3
# -MMD does not see files that .incbin includes.
$(BUILD)/core/recipe/recipe_builtin.o: $(wildcard core/recipe/recipes/*.recipe)
$(BUILD)/core/page/page.o: $(wildcard core/page/*.html core/page/*.css core/page/*.js)
$(BUILD)/tests/%.o: CPPFLAGS_ += -Itests -Itests/core $(CK_CFLAGS)
$(BUILD)/tests/%.o: private CFLAGS_ += $(TESTFLAGS_$(VARIANT))
# Objects are rebuilt when the flags change.
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(V_)$(CC) $(CPPFLAGS_) $(PKG_CFLAGS) $(CPPFLAGS) $(CFLAGS_) $(CFLAGS) -MMD -MP -c -o $@ $<

# Files that are written only when their contents change, so that what depends on them is rebuilt only then.
keep = @mkdir -p $(@D) && echo '$(1)' | cmp -s - $@ || echo '$(1)' >$@
$(BUILD)/flags: FORCE
	$(call keep,$(CC) $(CPPFLAGS_) $(PKG_CFLAGS) $(CPPFLAGS) $(CFLAGS_) $(CFLAGS))
LINK := $(LINK_$(VARIANT)) $(LDFLAGS) $(PKG_LIBS)
$(BUILD)/mpi: FORCE
	$(call keep,$(MPI_CFLAGS))
$(BUILD)/core.list: FORCE
	$(call keep,$(CORE) $(LINKLIB_$(VARIANT)) $(LDFLAGS) $(CORE_LIBS))
$(BUILD)/fs.list: FORCE
	$(call keep,$(FS) $(LINK))
$(BUILD)/fetch.list: FORCE
	$(call keep,$(FETCH) $(LINK_$(VARIANT)) $(LDFLAGS) $(FETCH_LIBS))
$(BUILD)/libexecdir: FORCE
	$(call keep,$(LIBEXECDIR))
$(BUILD)/tests.list: FORCE
	$(call keep,$(TEST) $(FS) $(FETCH) $(LINK) $(FETCH_LIBS))

-include $(patsubst %.o,%.d,$(call obj,scripts/python/static_stderr.c $(CORE) $(FETCH) $(FS) $(TEST) $(wildcard tests/fuzz/*.c tests/fetch/*.c tests/mpi/*.c tests/fs/*.c tests/net/*.c \
	tests/bench/*.c)))

# A wheel for pip: the package, libckpt and the program. They need nothing but a C library at least as new as the build
# machine's. Symbols of static libraries are hidden, so that other libraries in a process do not use them by mistake.
WHEEL_DIR  := $(BUILD)/wheel
# Debian's pkg-config does not name the codecs of libblosc.a, one of which is C++.
WHEEL_LIBS  = -L$(WHEEL_DIR) -Wl,-Bstatic,--start-group \
	$(filter-out -l%thread -ldl,$(if $(1),$(shell $(PKG_CONFIG) --libs fuse3 libseccomp)) $(CORE_FOUND)) \
	-llz4 -lsnappy -lstdc++ -Wl,--end-group,-Bdynamic -static-libgcc -lm -lpthread -ldl
WHEEL_LINK := -s -Wl,--exclude-libs,ALL

$(WHEEL_DIR)/libblosc.a: $(BUILD)/flags
	@mkdir -p $(@D)
	$(V_)$(OBJCOPY) --redefine-sym stderr=ckptfs_static_stderr $$($(CC) -print-file-name=libblosc.a) $@
$(WHEEL_DIR)/$(SONAME): $(call obj,$(CORE) scripts/python/static_stderr.c) $(WHEEL_DIR)/libblosc.a
	$(V_)$(CC) -shared -Wl,-soname,$(SONAME),-Bsymbolic $(CFLAGS_) $(CFLAGS) $(LINKLIB_$(VARIANT)) $(WHEEL_LINK) $(LDFLAGS) \
	  -o $@ $(filter %.o,$^) $(call WHEEL_LIBS)
$(WHEEL_DIR)/ckptfs: $(call obj,$(FS) scripts/python/static_stderr.c) $(BUILD)/libcore.a $(WHEEL_DIR)/libblosc.a
	$(V_)$(CC) $(CFLAGS_) $(CFLAGS) $(LINK_$(VARIANT)) $(WHEEL_LINK) $(LDFLAGS) -o $@ $(filter %.o,$^) $(BUILD)/libcore.a \
	  $(call WHEEL_LIBS,program)
wheel:
	@scripts/setup.sh wheel
	@$(MAKE) --no-print-directory $(BUILD)/wheel.done
$(BUILD)/wheel.done: $(WHEEL_DIR)/$(SONAME) $(WHEEL_DIR)/ckptfs $(PYTHON_PACKAGE) $(wildcard scripts/python/*.*)
	@/usr/bin/python3 -B scripts/python/wheel.py $(WHEEL_DIR)/$(SONAME) $(WHEEL_DIR)/ckptfs build
	@touch $@

install: all install-lib $(if $(WITH_FS),install-program) $(if $(FETCH_PROGRAM),install-fetch)

install-fetch: $(FETCH_PROGRAM)
	install -d $(DESTDIR)$(LIBEXECDIR)
	install -m 755 $(BUILD)/ckptfs-fetch $(DESTDIR)$(LIBEXECDIR)/ckptfs-fetch

install-program: program
	install -d $(DESTDIR)$(BINDIR) $(addprefix $(DESTDIR)$(MANDIR)/man,1 5 7 8) $(DESTDIR)$(COMPDIR) \
	  $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR) $(DESTDIR)$(HELPERDIR)
	install -m 755 $(BUILD)/ckptfs $(DESTDIR)$(BINDIR)/ckptfs
	for page in $(MAN); do install -m 644 $$page $(DESTDIR)$(MANDIR)/man$${page##*.} || exit 1; done
	install -m 644 fs/ckptfs.bash $(DESTDIR)$(COMPDIR)/ckptfs
	install -m 644 fs/ckptfs.zsh $(DESTDIR)$(ZSHDIR)/_ckptfs
	install -m 644 fs/ckptfs.fish $(DESTDIR)$(FISHDIR)/ckptfs.fish
	for name in mount.ckptfs mount.fuse.ckptfs; do \
	  ln -sfn $(BINDIR)/ckptfs $(DESTDIR)$(HELPERDIR)/$$name && \
	  echo .so man1/ckptfs-mount.1 >$(DESTDIR)$(MANDIR)/man8/$$name.8 || exit 1; \
	done

install-lib: lib
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCDIR)/ckptfs $(DESTDIR)$(MANDIR)/man3 \
	  $(DESTDIR)$(PYDIR)/ckptfs
	install -m 644 $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)/libckpt.so.$(VERSION)
	ln -sfn libckpt.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sfn $(SONAME) $(DESTDIR)$(LIBDIR)/libckpt.so
	install -m 644 $(BUILD)/libckpt.a $(DESTDIR)$(LIBDIR)/libckpt.a
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCDIR@|$(INCDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	  -e 's|@LIBS@|$(CORE_LIBS) -pthread|' core/include/ckpt.pc >$(DESTDIR)$(LIBDIR)/pkgconfig/ckpt.pc
	install -m 644 $(HEADERS) $(DESTDIR)$(INCDIR)/ckptfs
	install -m 644 core/include/ckpt.3 $(DESTDIR)$(MANDIR)/man3/ckpt.3
	install -m 644 $(PYTHON_PACKAGE) $(DESTDIR)$(PYDIR)/ckptfs
	[ -n "$(DESTDIR)" ] || $(LDCONFIG) || echo "ldconfig has to be run"

uninstall:
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libckpt.so libckpt.a $(SONAME) libckpt.so.$(VERSION) pkgconfig/ckpt.pc) \
	  $(addprefix $(DESTDIR)$(INCDIR)/ckptfs/,$(notdir $(HEADERS))) \
	  $(DESTDIR)$(MANDIR)/man3/ckpt.3 $(addprefix $(DESTDIR)$(PYDIR)/ckptfs/,$(notdir $(PYTHON_PACKAGE)))
	rm -rf $(DESTDIR)$(PYDIR)/ckptfs/__pycache__
	[ ! -d $(DESTDIR)$(PYDIR)/ckptfs ] || rmdir $(DESTDIR)$(PYDIR)/ckptfs
	[ ! -d $(DESTDIR)$(INCDIR)/ckptfs ] || rmdir $(DESTDIR)$(INCDIR)/ckptfs
	rm -f $(DESTDIR)$(LIBEXECDIR)/ckptfs-fetch
	[ ! -d $(DESTDIR)$(LIBEXECDIR) ] || rmdir $(DESTDIR)$(LIBEXECDIR)
	rm -f $(DESTDIR)$(BINDIR)/ckptfs $(DESTDIR)$(COMPDIR)/ckptfs $(DESTDIR)$(ZSHDIR)/_ckptfs \
	  $(DESTDIR)$(FISHDIR)/ckptfs.fish \
	  $(foreach page,$(MAN),$(DESTDIR)$(MANDIR)/man$(patsubst .%,%,$(suffix $(page)))/$(notdir $(page))) \
	  $(DESTDIR)$(MANDIR)/man8/mount.ckptfs.8 $(DESTDIR)$(MANDIR)/man8/mount.fuse.ckptfs.8 \
	  $(DESTDIR)$(HELPERDIR)/mount.ckptfs $(DESTDIR)$(HELPERDIR)/mount.fuse.ckptfs

# The sources in one file; packages for the running Debian release.
dist:
	@scripts/dist.sh $(VERSION)
deb:
	@scripts/deb.sh $(VERSION)

# Builds the last commit twice, in two directories, and compares the files.
reproduce:
	@scripts/setup.sh wheel
	@scripts/reproduce.sh

# Installs the Debian packages that a build needs (root).
setup:
	@MPI=$(WITH_MPI) scripts/setup.sh build

# demo and check install what they need if they can (on Debian, as root), and say so.
demo:
	@MPI=$(WITH_MPI) scripts/setup.sh build
	@$(MAKE) --no-print-directory all
	@scripts/demo.sh

check-programs: all $(BUILD)/tests/unit $(BUILD)/tests/syscalls $(BUILD)/tests/random_reads $(BUILD)/tests/proxy $(BUILD)/tests/dir-fetch \
	$(BUILD)/tests/quick_python $(if $(filter build/release,$(BUILD)),$(BUILD)/wheel.done) \
	$(if $(filter tsan,$(VARIANT)),,$(patsubst %,$(BUILD)/fuzz/%,$(FUZZ))) $(patsubst %,$(BUILD)/tests/%,$(FSPROGS))
# Unit suites, then real mounts. CK_FORK=no for a debugger.
# check-full runs the long loops of fault and property tests, too.
check:
	@MPI=$(WITH_MPI) scripts/setup.sh test
	@$(MAKE) --no-print-directory check-programs
	@scripts/check.sh $(BUILD)
check-full:
	@CHECK_FULL=1 $(MAKE) --no-print-directory check
check-asan:
	@$(MAKE) --no-print-directory check VARIANT=asan
# Under ThreadSanitizer only the suites that start threads, and mounts with much going on at once.
check-tsan:
	@MOUNTS="live_faults mount reads run" \
	  UNIT="archive blockcache catalog ckpt ckpt_model comm counters depot diff fetch files http index lease net pagemap run save_run \
	    server wire writer_dcp" \
	  $(MAKE) --no-print-directory check VARIANT=tsan
# The unit suites under memcheck (valgrind); SUITES names some of them.
check-valgrind:
	@$(MAKE) --no-print-directory VARIANT=valgrind build/valgrind/tests/unit
	@scripts/valgrind.sh build/valgrind/tests/unit $(SUITES)
# How much of the sources the tests reach, with clang; UNIT, MOUNTS, CHECK_FULL as in scripts/check.sh.
coverage:
	@MPI=$(WITH_MPI) scripts/setup.sh test
	@$(MAKE) --no-print-directory VARIANT=coverage CC=$(COVERAGE_CC) all \
	  $(patsubst %,build/coverage/tests/%,unit syscalls random_reads proxy dir-fetch quick_python $(FSPROGS)) \
	  $(patsubst %,build/coverage/fuzz/%,$(FUZZ))
	@CC=$(COVERAGE_CC) scripts/coverage.py
# Finds small mistakes that the tests do not notice. N mutants, SEED; scripts/mutants.py has more options.
mutants: all $(BUILD)/tests/unit $(if $(WITH_FETCH),$(BUILD)/tests/dir-fetch)
	@MUTANTS_MAKE='CC=$(CC)' scripts/mutants.py -n $(or $(N),300) -s $(or $(SEED),1)
check-torch: all
	@MPI=$(WITH_MPI) scripts/setup.sh test
	@$(MAKE) --no-print-directory wheel
	@tests/torch/run.sh
	@tests/torch/reshard.sh
	@tests/torch/clients.sh
	@tests/torch/gguf.sh
	@tests/torch/arch.sh
	@tests/torch/recipes.sh
	@tests/torch/zero3.sh
	@tests/torch/fsdp.sh
	@tests/torch/kinds.sh
	@tests/torch/megatron_ranks.sh
	@tests/torch/python.sh
	@tests/torch/dcp_reader.sh
	@tests/torch/zarr.sh
	@tests/torch/dequant.sh
	@tests/torch/quantise.sh
	@tests/torch/gguf_source.sh
	@tests/torch/merge.sh

# Chosen suites on ext4, XFS, btrfs, NFS ... (FILESYSTEMS names some; root).
check-filesystems:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory check-programs
	@tests/fs/filesystems.sh $(BUILD) $(FILESYSTEMS)

# Long-running stress test with many readers on mounts. Set SOAK_SECONDS for shorter runs.
soak: all $(BUILD)/tests/soak
	@SOAK_SECONDS=$(or $(SOAK_SECONDS),$$(($(or $(MINUTES),60) * 60))) tests/fs/soak.sh $(BUILD)
# The same with all views, a run and a store, while storage, network and processes fail at random (root).
soak-faults: all $(BUILD)/tests/soak $(BUILD)/tests/badfs $(BUILD)/tests/proxy
	@CHECK_FULL=1 scripts/setup.sh test
	@SOAK_SECONDS=$(or $(SOAK_SECONDS),$$(($(or $(MINUTES),60) * 60))) tests/fs/soak_faults.sh $(BUILD)

# FUZZ_SECS of libFuzzer for every target; what they find goes to tests/fuzz/grown.
fuzz:
	@scripts/fuzz.sh $(or $(FUZZ_SECS),60) $(FUZZ)

# Release builds, whatever VARIANT says. CASES, SIZE, ROUNDS, OUT: see scripts/bench.py.
bench:
	@$(MAKE) -s VARIANT=release all $(addprefix build/release/,bench/reader bench/bench_plan tests/proxy)
	@python3 scripts/bench.py

# Time and memory of every command on very large checkpoints, in three sizes. CASES, SCALE: see tests/bench/big.py.
big:
	@$(MAKE) -s VARIANT=release all
	@python3 tests/bench/big.py $(CASES)

layers:
	@scripts/check-layers.sh
lint: layers
	@scripts/lint.sh
# clang-tidy and gcc's analyser; takes minutes.
analyze:
	@scripts/analyze.sh
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

clean:
	rm -rf build

help:
	@echo 'all install uninstall clean     program, library, man pages (PREFIX, DESTDIR)'
	@echo '                                LIB_ONLY=1: libckpt alone; REMOTE=0: no object stores; MPI=1: with Open MPI; CROSS_COMPILE=PREFIX'
	@echo 'dist deb wheel                  a tar of the sources; Debian packages; a wheel for pip, in build/'
	@echo 'demo                            mount a real checkpoint and look around'
	@echo 'setup                           install the Debian packages that a build needs (root)'
	@echo 'check check-full                all tests; with the long loops of fault and property tests'
	@echo 'check-asan check-tsan           all tests, with sanitizers'
	@echo 'check-torch                     against real PyTorch and transformers in a chroot (root)'
	@echo 'check-filesystems               chosen suites on ext4, XFS, btrfs, NFS ... (root)'
	@echo 'reproduce                       build twice, in two directories, and compare the bytes'
	@echo 'coverage                        lines and branches that the tests reach, by folder (clang)'
	@echo 'mutants                         small mistakes that the tests do not notice, N=300 SEED=1'
	@echo 'fuzz                            libFuzzer, FUZZ_SECS=60 per target (clang)'
	@echo 'soak soak-faults                64 readers compare every byte, MINUTES=60; while storage and network fail (root)'
	@echo 'bench                           compare with other tools; CASES, SIZE: scripts/bench.py -h'
	@echo 'big                             every command on 1.3 million chunks, 2 TB, 10,000 steps: half an hour'
	@echo 'layers lint format              include order, static checks, clang-format'
	@echo 'analyze check-valgrind          clang-tidy, gcc -fanalyzer; unit suites under memcheck: minutes'

FORCE:
.SECONDARY: # objects that only pattern rules name are worth keeping
.PHONY: all compile lib program install install-lib install-program install-fetch uninstall setup dist deb wheel demo check check-full \
	reproduce check-programs check-asan check-tsan check-valgrind check-filesystems \
	check-torch coverage mutants fuzz soak soak-faults bench big layers lint analyze format clean help FORCE
.DELETE_ON_ERROR:
