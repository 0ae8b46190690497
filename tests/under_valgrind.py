#!/usr/bin/env python3
"""under_valgrind.py VALGRIND... -- TEST [ARG...]: run a test under valgrind, without io_uring.

Valgrind takes io_uring_enter for a call that never blocks, and keeps its one lock through it: a test that waits
there stands still. A seccomp filter refuses io_uring_setup, so that stores use threads; suites that insist on
io_uring are skipped.
"""
import ctypes
import os
import struct
import sys

LD_W_ABS, JEQ, RET = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7fff0000, 0x00050000
IO_URING_SETUP, EPERM = 425, 1
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2


def refuse_io_uring():
    code = struct.pack('HBBI' * 4, LD_W_ABS, 0, 0, 0, JEQ, 0, 1, IO_URING_SETUP,
                       RET, 0, 0, ERRNO | EPERM, RET, 0, 0, ALLOW)
    program = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack('HxxxxxxQ', 4, ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    if (libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or
            libc.prctl(PR_SET_SECCOMP, MODE_FILTER, filter_, 0, 0)):
        sys.exit(f'under_valgrind.py: seccomp: {os.strerror(ctypes.get_errno())}')


def main():
    end = sys.argv.index('--')
    valgrind, test = sys.argv[1:end], sys.argv[end + 1:]
    if test[0].endswith(('_uring', 'pager_model')):
        print('1..0 # SKIP valgrind cannot wait in io_uring')
        return
    refuse_io_uring()
    os.execvp(valgrind[0], valgrind + test)


main()
