"""tap.py: the tests of a Python program, told as TAP. A test is a function; its name is the behaviour."""
import sys
import traceback
import unittest


class Skip(unittest.SkipTest):
    """What is missing, by name. Also in a test of unittest."""


def main(tests, *arguments, only=()):
    """Run each test with the arguments. only: words; a test that holds none of them is left out."""
    failed = 0
    if only:
        tests = [t for t in tests if any(word in t.__name__ for word in only)]
    print(f"1..{len(tests)}")
    for number, test in enumerate(tests, 1):
        name = test.__name__
        try:
            test(*arguments)
            print(f"ok {number} {name}", flush=True)
        except Skip as skip:
            print(f"ok {number} {name} # SKIP {skip}", flush=True)
        except Exception:  # noqa: whatever it was, the others still run
            failed += 1
            print(f"not ok {number} {name}", flush=True)
            traceback.print_exc()
    sys.exit(failed > 0)
