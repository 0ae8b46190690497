"""terminal.py: a program whose standard error is a terminal."""
import os
import pty
import subprocess

import tap


def run(words, **options):
    """Return code, standard output, and what the terminal was sent."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        raise tap.Skip("no pseudo-terminal here (%s); /dev/pts is to be mounted" % error) from error
    with subprocess.Popen(words, stderr=theirs, stdout=subprocess.PIPE, text=True, **options) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            said += more
        out = process.stdout.read()
    os.close(ours)
    return process.returncode, out, said.decode()
