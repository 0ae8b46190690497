#!/usr/bin/env python3
"""What the libraries show and what they call.

usage: check_symbols.py SOURCE_ROOT LIBHAUL_SO LIBHAUL_A ROOM_A...
       check_symbols.py SOURCE_ROOT --header mpi.h LIBHAUL_MPI_SO LIBHAUL_MPI_A ROOM_A...

1. The static archive shows only haul_ and hl_ names, the shared library only haul_.
2. Every function that a public header declares is exported, and nothing else is.
3. Rooms reach libc and the kernel through lib/base/sys.h, never print, never end the process.
"""
import pathlib
import re
import subprocess
import sys

# Calls that can fail, that print, or that end the process.
FORBIDDEN = set("""
    malloc calloc realloc reallocarray free strdup strndup asprintf vasprintf aligned_alloc
    posix_memalign memalign valloc mmap mmap64 munmap mremap madvise mlock munlock
    open open64 openat openat64 creat close read write pread pread64 pwrite pwrite64 preadv pwritev
    fopen fopen64 fdopen fclose fread fwrite fgets fcntl fcntl64 ioctl fstat fstat64 stat stat64 statx
    fstatfs fstatfs64 ftruncate ftruncate64 fallocate fallocate64 posix_fallocate posix_fallocate64
    fsync fdatasync sync_file_range rename renameat unlink unlinkat mkdir rmdir flock lockf
    memfd_create eventfd opendir fdopendir readdir readdir64 closedir
    pthread_create pthread_join pthread_mutex_lock pthread_cond_wait sched_setaffinity fork
    dlopen dlsym dlclose getrlimit getrlimit64 setrlimit
    printf fprintf vprintf vfprintf puts putchar fputs fputc perror stdout stderr
    __printf_chk __fprintf_chk __vfprintf_chk
    exit _exit _Exit abort quick_exit raise kill signal sigaction
""".split())

# file: what it may call all the same, and why
ALLOWED = {
    "sys.c": None,       # the wrappers
    "sys_file.c": None,  # themselves
    "fail.c": {"fprintf", "stderr"},     # the default log sink
    "store_dirs.c": {"pread64", "pread"},  # who holds a lock: for the message of a failure
    "scratch_file.c": {"unlinkat"},      # undoing, which must not be made to fail
    "device_cuda_driver.c": {"dlopen", "dlsym", "dlclose"},  # behind hl_sys_attempt()
    "comm_nccl_lib.c": {"dlopen", "dlsym", "dlclose"},  # behind hl_sys_attempt()
    "wear.c": {"ioctl"},                 # asks a drive for its wear; no answer is an answer
    "comm_mpi.c": {"calloc", "free"},    # of libhaul-mpi, which sees only what libhaul exports
    "comm_mpi_node.c": {"calloc", "free", "stat", "stat64", "close"},
    "comm_mpi_hand.c": {"calloc", "free", "pthread_create", "pthread_join", "pthread_mutex_lock",
                        "pthread_cond_wait"},
}

# Headers whose functions are in a library of their own.
APART = {"mpi.h"}


def nm(path, *flags):
    """(member, symbol) of an archive or a library."""
    text = subprocess.run(["nm", "-A", *flags, path], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        where, _, rest = line.rpartition(":")
        yield where.split(":")[-1].split("/")[-1], rest.split()[-1].split("@")[0]


def declared(root, only):
    names = set()
    for header in (root / "include" / "haul").glob(only or "*.h"):
        if not only and header.name in APART:
            continue
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for decl in re.findall(r"^HAUL_API\b(?!\s*__attribute__)([^;]*);", text, flags=re.M):
            names.add(re.search(r"\b(haul_\w+)\s*\(", decl).group(1))
    return names


def source_name(member, sources):
    """sys.c of lib_base_..._sys.c.o and of sys.c.o."""
    stem = member[:-2] if member.endswith(".o") else member
    return max((s for s in sources if stem == s or stem.endswith("_" + s)), key=len, default=stem)


def main(root, *args):
    only = args[1] if args[0] == "--header" else None
    shared, static, *rooms = args[2:] if only else args
    root = pathlib.Path(root)
    public = declared(root, only)
    sources = [p.name for d in ("lib", "io", "cpu_adam") for p in (root / d).rglob("*.c")]
    wrong = []

    exported = {s for _, s in nm(shared, "-D", "--defined-only") if not s.startswith("HAUL_")}
    wrong += [f"{s}: exported, but not haul_" for s in sorted(exported) if not s.startswith("haul_")]
    wrong += [f"{s}: declared in a public header, not exported" for s in sorted(public - exported)]
    wrong += [f"{s}: exported, in no public header" for s in sorted(exported - public)]

    for member, symbol in nm(static, "--defined-only", "--extern-only"):
        if not symbol.startswith(("haul_", "hl_")):
            wrong.append(f"{symbol}: global in the static archive ({member})")

    ncalls = 0
    for room in rooms:
        for member, symbol in nm(room, "--undefined-only"):
            name = source_name(member, sources)
            allowed = ALLOWED.get(name, set())
            ncalls += 1
            if symbol in FORBIDDEN and allowed is not None and symbol not in allowed:
                wrong.append(f"{name} calls {symbol}: use hl_sys_* (lib/base/sys.h) or hl_fail()")

    for line in sorted(set(wrong)):
        print(line)
    print(f"{len(exported)} exported functions, {ncalls} outside references in {len(rooms)} rooms, "
          f"{len(set(wrong))} wrong")
    return 1 if wrong or not exported or not ncalls else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
