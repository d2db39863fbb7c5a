"""What runs in the sandbox before a command that has hosts granted: it forwards a local port to the proxy's socket.

The sandbox has no network. This listens on the sandbox's own loopback interface and hands every connection to the unix
socket of the proxy outside. Then the command is started in the place of this process, with the same environment, and
finds the port in HTTP_PROXY and the like. It is run by the Python of this process and needs the standard library alone.
"""

from __future__ import annotations

PROXY_PORT = 3128

FORWARDER_SOURCE = f"""\
import _thread, os, signal, socket, sys


def pump(source, target):
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end is gone; the other direction ends too
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def serve(listener, path):
    while True:
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        _thread.start_new_thread(pump, (near, far))
        _thread.start_new_thread(pump, (far, near))


path, *argv = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", {PROXY_PORT}))
if os.fork() == 0:
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    serve(listener, path)
listener.close()
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it starts would too
    signal.signal(number, signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:  # without what Python sets for itself at its start
    pairs = [entry.partition(b"=") for entry in file.read().split(b"\\0") if entry]
try:
    os.execvpe(argv[0], argv, {{name: value for name, _, value in pairs}})
except OSError as error:
    sys.stderr.write(f"{{argv[0]}}: {{error.strerror}}\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
