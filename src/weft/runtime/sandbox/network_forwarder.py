"""What runs in the sandbox before a command that has hosts granted: it forwards a local port to the proxy's socket.

The sandbox has no network. This listens on the sandbox's own loopback interface and hands every connection to the unix
socket of the proxy outside. Then the command is started in the place of this process, with the same environment, and
finds the port in HTTP_PROXY and the like. It is run by the Python of this process, and imports only what is built into
that: `socket` and `signal` would take longer to load than Python to start.
"""

from __future__ import annotations

PROXY_PORT = 3128

FORWARDER_SOURCE = f"""\
import _signal, _socket, _thread, os, sys


def pump(source, target):
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(_socket.SHUT_WR)
    except OSError:  # one end is gone; the other direction ends too
        for end in (source, target):
            try:
                end.shutdown(_socket.SHUT_RDWR)
            except OSError:
                continue


def serve(listener, path):
    while True:
        near = _socket.socket(fileno=listener._accept()[0])
        far = _socket.socket(_socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        _thread.start_new_thread(pump, (near, far))
        _thread.start_new_thread(pump, (far, near))


path, *argv = sys.argv[1:]
listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
listener.bind(("127.0.0.1", {PROXY_PORT}))
listener.listen(64)
if os.fork() == 0:
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    serve(listener, path)
listener.close()
for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and what it starts would too
    _signal.signal(number, _signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:  # without what Python sets for itself at its start
    pairs = [entry.partition(b"=") for entry in file.read().split(b"\\0") if entry]
try:
    os.execvpe(argv[0], argv, {{name: value for name, _, value in pairs}})
except OSError as error:
    sys.stderr.write(f"{{argv[0]}}: {{error.strerror}}\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
