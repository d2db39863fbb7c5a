"""Scripts that try to leave the sandbox, each a few lines of Python, and what runs them inside one after the other.

Each runs in a process of its own. What it prints comes back; `escaped` says that something worked which must not.
They know SECRET_FILE, OUTSIDE (a folder), PORT and UNIX (where somebody listens outside), PID (a process outside),
MARK (for processes that want to stay), `call` for system calls by name and `libc` for those with a function.
"""

from __future__ import annotations

PRELUDE = r"""
import ctypes, fcntl, glob, json, os, resource, signal, socket, struct, subprocess
import sys, time
GIVEN = json.loads(sys.argv[1])
SECRET_FILE, OUTSIDE, PORT, UNIX, PID, MARK, NUMBERS, ADDRESS, DESCRIPTOR, MEMORY, SEGMENT = (GIVEN[name] for name in
    "secret_file outside port unix pid mark numbers address descriptor memory segment".split())
libc = ctypes.CDLL(None, use_errno=True)
def escaped(what="yes"):
    print("ESCAPED", what)
def call(name, *arguments):
    if name in NUMBERS and libc.syscall(NUMBERS[name], *arguments) >= 0:
        escaped(name)
def works(value):
    if value >= 0:
        escaped(value)
def show(*paths):
    for path in paths:
        try:
            print(os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 16).decode("latin-1"))
        except OSError as error:
            print(type(error).__name__)
def changed(path, flags=os.O_WRONLY | os.O_CREAT):
    os.close(os.open(path, flags, 0o666))
    escaped(path)
def stay():
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)", MARK])
def reach(family, kind, *address):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(*address)
        s.send(b"canary")
        escaped(address)
def proxied(request):
    with socket.create_connection(("127.0.0.1", 3128), timeout=5) as s:
        s.sendall(request.encode())
        answer = s.recv(1000)
        if b" 200 " in answer[:20]:
            escaped(request)
"""

DRIVER = r"""
def attempt(source):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.dup2(writing, 1); os.dup2(writing, 2)
        signal.alarm(10)
        try:
            exec(compile(source, "escape", "exec"), globals())
        except BaseException as error:
            print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    os.set_blocking(reading, False)
    try:
        output = os.read(reading, 1 << 16)
    except BlockingIOError:
        output = b""
    os.close(reading)
    return output.decode("latin-1")
print(json.dumps({name: attempt(source) for name, source in GIVEN["escapes"].items()}))
"""

ESCAPES: dict[str, str] = {
    # files that are not shown
    "read the file": "show(SECRET_FILE)",
    "read it by a relative path": "show(os.path.relpath(SECRET_FILE))",
    "read it from the root of the first process": "show('/proc/1/root' + SECRET_FILE)",
    "read it from the own root": "show('/proc/self/root' + SECRET_FILE)",
    "read it from the root of a process outside": "show(f'/proc/{PID}/root' + SECRET_FILE)",
    "read it from the folder of a process outside": "show(f'/proc/{PID}/cwd/' + os.path.basename(SECRET_FILE))",
    "read it by a link": "os.symlink(SECRET_FILE, '/tmp/link'); show('/tmp/link')",
    "read it by a link of the workspace": "show('planted-link')",
    "read it by a second name": "os.link(SECRET_FILE, 'hard'); show('hard')",
    "move it here": "os.rename(SECRET_FILE, 'moved'); show('moved')",
    "climb above the root": "show('/' + '../' * 40 + SECRET_FILE.lstrip('/'))",
    "climb from an open folder": "os.fchdir(os.open('/', 0)); show('../' * 20 + SECRET_FILE.lstrip('/'))",
    "change the root": "os.chroot('.'); show(SECRET_FILE)",
    "change the root and climb": "os.chroot('/tmp'); os.chdir('../' * 10); show('.' + SECRET_FILE)",
    "open it by a handle": "call('open_by_handle_at', -100, None, 0)",
    "bind it here": "works(libc.mount(b'/', b'/tmp', None, 4096, None))",
    "mount a file system": "works(libc.mount(b'none', b'/tmp', b'proc', 0, None))",
    "take the cover off the ledger": "libc.umount2(b'.weft', 2); show('.weft/secret')",
    "mount the root anew": "works(libc.mount(b'none', b'/', None, 32, None))",
    "read the ledger of the workspace": "show('.weft/secret')",
    "move the ledger of the workspace": "os.rename('.weft', 'other'); show('other/secret')",
    "find it": "[show(*glob.glob('/*' * depth + '/canary')) for depth in range(4)]",
    "read the disks": "show(*glob.glob('/dev/[svn][dvm]*'), *glob.glob('/dev/dm-*'), '/dev/mapper/control')",
    "read the memory of the machine":
    "[escaped(p) for p in ('/dev/mem', '/dev/kmem', '/dev/port') if os.path.exists(p)]",
    "read the memory of the kernel": "os.read(os.open('/proc/kcore', 0), 1) and escaped()",
    "make a node of a disk": "os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0)); changed('/tmp/disk')",
    "make a node in the workspace": "os.mknod('disk', 0o60666, os.makedev(259, 0)); changed('disk')",
    "attach a loop device": "fcntl.ioctl(os.open('/dev/loop-control', 2), 0x4C82); escaped()",
    "read the home folders": "show(*glob.glob('/home/*/.*'), *glob.glob('/root/.ssh/*'), '/root/.bash_history')",
    "read the passwords": "os.read(os.open('/etc/shadow', 0), 1) and escaped()",
    "read the users": "os.read(os.open('/etc/passwd', 0), 1) and escaped()",
    "read the logs": "os.listdir('/var/log') and escaped()",
    "read the running state": "os.listdir('/run/user') and escaped()",
    "read the settings of the hardware": "os.listdir('/sys/firmware') and escaped()",
    "speak to docker": "reach(socket.AF_UNIX, 1, '/var/run/docker.sock')",
    "read secrets of a cluster": "os.listdir('/var/run/secrets') and escaped()",
    "read what the kernel said": "works(libc.klogctl(3, ctypes.create_string_buffer(99), 99))",
    "read what lies in the memory of others": "show(*glob.glob('/dev/shm/*'))",
    # writing outside
    "write the file": "changed(SECRET_FILE)",
    "write beside it": "changed(OUTSIDE + '/written')",
    "write above the workspace": "open('../written', 'w').write('x')",
    "write through a link": "os.symlink(OUTSIDE + '/written', '/tmp/out'); changed('/tmp/out')",
    "write through a link of the workspace": "changed('planted-folder/written')",
    "remove the file": "os.unlink(SECRET_FILE); escaped()",
    "write a command of the system": "changed('/usr/bin/canary')",
    "write a job": "os.makedirs('/etc/cron.d'); escaped()",
    "change the mode of the system": "os.chmod('/usr/bin', 0o777); escaped()",
    "change the mode of a device": "os.chmod('/dev/null', 0o600)",
    "leave a file that runs as its owner": "open('/tmp/s', 'w'); os.chmod('/tmp/s', 0o4755); escaped('s')",
    "leave a file with capabilities": "os.setxattr('.', 'security.capability', b'x' * 20); escaped()",
    "set the pattern of core files": "changed('/proc/sys/kernel/core_pattern', os.O_WRONLY)",
    "set the helper for modules": "changed('/proc/sys/kernel/modprobe', os.O_WRONLY)",
    "press the magic key": "changed('/proc/sysrq-trigger', os.O_WRONLY)",
    "use the release agent":
    "[changed(p, os.O_WRONLY) for p in glob.glob('/sys/fs/cgroup/**/release_agent', recursive=True)]",
    "make a cgroup": "os.mkdir('/sys/fs/cgroup/canary'); escaped()",
    "map other users": "os.write(os.open('/proc/self/uid_map', 1), b'0 0 4294967295'); escaped()",
    "become root": "os.setuid(0); escaped()",
    "become somebody else": "os.setresuid(12345, 12345, 12345); escaped()",
    "change the owner of a file": "os.chown('/tmp', 0, 12345); escaped()",
    "register a format of programs": "changed('/proc/sys/fs/binfmt_misc/register', os.O_WRONLY)",
    # the network
    "connect to this machine": "reach(socket.AF_INET, 1, ('127.0.0.1', PORT))",
    "connect to its address": "reach(socket.AF_INET, 1, (ADDRESS, PORT))",
    "connect by IPv6": "reach(socket.AF_INET6, 1, ('::1', PORT))",
    "connect by mapped IPv6": "reach(socket.AF_INET6, 1, ('::ffff:127.0.0.1', PORT))",
    "connect to any address": "reach(socket.AF_INET, 1, ('0.0.0.0', PORT))",
    "send a datagram far away": "reach(socket.AF_INET, 2, ('1.1.1.1', 53))",
    "connect to a metadata service": "reach(socket.AF_INET, 1, ('169.254.169.254', 80))",
    "connect to a name": "socket.create_connection(('localhost', PORT), 2); escaped()",
    "resolve a name": "socket.getaddrinfo('example.com', 80); escaped()",
    "connect to a socket by its path": "reach(socket.AF_UNIX, 1, UNIX)",
    "connect to an abstract socket": "reach(socket.AF_UNIX, 1, '\\0' + UNIX)",
    "use a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped()",
    "use packets": "socket.socket(17, socket.SOCK_RAW, 3); escaped()",
    "use a socket of the hypervisor": "socket.socket(40, 1, 0); escaped()",
    "use the ciphers of the kernel": "socket.socket(38, 5, 0); escaped()",
    "set an interface up": "fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH14x', b'lo', 0)); escaped()",
    "make a tunnel": "os.open('/dev/net/tun', os.O_RDWR); escaped()",
    "join the network of the first process":
    "libc.setns(os.open('/proc/1/ns/net', 0), 0); reach(2, 1, (ADDRESS, PORT))",
    "join the network of a process outside": "works(libc.setns(os.open(f'/proc/{PID}/ns/net', 0), 0))",
    "have the proxy reach this machine": "proxied(f'CONNECT 127.0.0.1:{PORT} HTTP/1.1\\r\\n\\r\\n')",
    "have the proxy reach it by name": "proxied(f'CONNECT localhost:{PORT} HTTP/1.1\\r\\n\\r\\n')",
    "have the proxy reach it by a number": "proxied(f'GET http://0x7f000001:{PORT}/ HTTP/1.1\\r\\n\\r\\n')",
    "have the proxy reach it by mapped IPv6": "proxied(f'CONNECT [::ffff:127.0.0.1]:{PORT} HTTP/1.1\\r\\n\\r\\n')",
    "have the proxy reach another host": "proxied('CONNECT evil.example:443 HTTP/1.1\\r\\n\\r\\n')",
    "take the place of the proxy": "[(os.unlink(p), escaped(p)) for p in glob.glob('/tmp/weft-proxy-*/proxy')]",
    # other processes
    "look for a process outside": "os.kill(PID, 0); escaped()",
    "end a process outside": "os.kill(PID, signal.SIGKILL); escaped()",
    "signal a group outside": "os.killpg(PID, 0); escaped()",
    "trace a process outside": "call('ptrace', 16, PID, 0, 0)",
    "trace the first process": "call('ptrace', 16, 1, 0, 0)",
    "read the memory of a process": "call('process_vm_readv', 1, None, 0, None, 0, 0)",
    "read the memory of the first process": "os.read(os.open('/proc/1/mem', 0), 1); escaped()",
    "read the memory of a process outside": "os.open(f'/proc/{PID}/mem', 0); escaped()",
    "hold a process outside": "os.pidfd_open(PID); escaped()",
    "limit a process outside": "resource.prlimit(PID, resource.RLIMIT_NOFILE, (1, 1)); escaped()",
    "slow a process outside": "os.setpriority(os.PRIO_PROCESS, PID, 19); escaped()",
    "bind a process outside": "os.sched_setaffinity(PID, {0}); escaped()",
    "have a process outside killed first": "changed(f'/proc/{PID}/oom_score_adj', os.O_WRONLY)",
    "read the environments": "show(*glob.glob('/proc/[0-9]*/environ'))",
    "read the command lines": "[escaped(p) for p in glob.glob('/proc/[0-9]*') if os.path.basename(p) == str(PID)]",
    # staying
    "stay in a session of its own": "os.fork() or (os.setsid(), stay())",
    "stay as a grandchild": "os.fork() or (os.setsid(), os.fork() or stay())",
    "stay in another group": "os.fork() or (os.setpgid(0, 0), stay())",
    "stay deaf to signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; os.fork() or stay()",
    "stay as a reaper": "libc.prctl(36, 1, 0, 0, 0); os.fork() or (libc.prctl(1, 0, 0, 0, 0), stay())",
    "stay stopped": "os.fork() or (os.fork() or stay(), os.kill(os.getpid(), signal.SIGSTOP))",
    "make a namespace of processes": "call('unshare', 0x20000000)",
    "make a namespace of users": "call('unshare', 0x10000000)",
    "make a namespace of mounts": "call('unshare', 0x20000)",
    "start in a namespace of users": "call('clone', 0x10000000 | 17, 0, 0, 0, 0)",
    "start in a namespace by the newer call": "call('clone3', None, 0)",
    # what was inherited
    "read the variables": "print(dict(os.environ))",
    "read open files":
    "[print(os.pread(n, 4096, 0)) for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{n}') and n > 9]",
    "open the files of whoever started it": "[show(p) for p in glob.glob('/proc/1/fd/*')]",
    "use the keys of the session": "call('keyctl', 0, -3, 0)",
    "leave a key": "call('add_key', b'user', b'weft', b'x', 1, -3)",
    "ask for a key": "call('request_key', b'user', b'weft', None, -3)",
    "write to the terminal": "fcntl.ioctl(0, 0x5412, b'x'); escaped()",
    "open the terminal": "os.open('/dev/tty', os.O_RDWR); escaped()",
    # the kernel
    "load a program into the kernel": "call('bpf', 0, ctypes.create_string_buffer(128), 128)",
    "watch the machine": "call('perf_event_open', ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    "handle faults of pages": "call('userfaultfd', 0)",
    "queue calls": "call('io_uring_setup', 1, ctypes.create_string_buffer(128))",
    "load a module": "call('init_module', None, 0, b'')",
    "load a kernel": "call('kexec_load', 0, 0, None, 0)",
    "restart the machine": "call('reboot', 0xfee1dead, 672274793, 0, None)",
    "set the clock": "time.clock_settime(time.CLOCK_REALTIME, 0); escaped()",
    "name the machine": "socket.sethostname('canary'); escaped()",
    "use a swap file": "works(libc.swapon(b'x', 0))",
    "keep accounts": "works(libc.acct(b'x'))",
    "run as another by sudo": "subprocess.run(['sudo', '-n', 'true'], check=True); escaped()",
    "run as another by su": "subprocess.run(['su', '-c', 'true'], check=True, stdin=subprocess.DEVNULL); escaped()",
    "gain privileges by a program of root":
    "[escaped() for p in glob.glob('/usr/bin/*') if os.stat(p).st_mode & 0o4000 and"
    " b'NoNewPrivs:\\t1' not in open('/proc/self/status', 'rb').read()]",
    "make memory that runs and is no file": "call('memfd_create', b'x', 0)",
    "read the random seed of this start": "show('/proc/sys/kernel/random/boot_id')",
}  # fmt: skip
