"""Further scripts that try to leave the sandbox, run like those in `escapes`: ways that are less often thought of.

Beside what those know, they know DESCRIPTOR (of the process outside, on the secret), MEMORY (where the secret lies in
it) and SEGMENT (memory that it shares, with the secret in it).
"""

from __future__ import annotations

FURTHER: dict[str, str] = {
    # files, by what the kernel keeps of other processes
    "read it from the folder of the first process": "show('/proc/1/cwd/' + '../' * 20 + SECRET_FILE.lstrip('/'))",
    "read it from a thread of the first process": "show('/proc/1/task/1/root' + SECRET_FILE)",
    "read it from a descriptor of a process outside": "show(f'/proc/{PID}/fd/{DESCRIPTOR}')",
    "open what the first process mapped":
    "[(os.close(os.open(p, 0)), escaped(p)) for p in glob.glob('/proc/1/map_files/*')]",
    "find a folder that was left open":
    "[escaped(os.readlink(p)) for p in glob.glob('/proc/[0-9]*/fd/*') if os.path.isdir(p)]",
    "find a file that was left open":
    "[escaped(os.readlink(p)) for p in glob.glob('/proc/[0-9]*/fd/*') if os.path.isfile(p)]",
    "read it from the root before": "show('/oldroot' + SECRET_FILE, '/newroot' + SECRET_FILE)",
    "load it as a library":
    "try: ctypes.CDLL(SECRET_FILE)\nexcept OSError as error: 'too short' in str(error) and escaped(error)",
    "run it as a script": "print(subprocess.run([sys.executable, SECRET_FILE], capture_output=True))",
    "watch it": "works(libc.inotify_add_watch(libc.inotify_init(), SECRET_FILE.encode(), 0xfff))",
    "watch all files": "call('fanotify_init', 0x200, 0)",
    "open the folder above by its handle":
    "handle = ctypes.create_string_buffer(struct.pack('Ii', 120, 0), 128); number = ctypes.c_int()\n"
    "libc.name_to_handle_at(-100, b'/usr', handle, ctypes.byref(number), 0)\n"
    "call('open_by_handle_at', os.open('/usr', 0), handle, 0x10000)",
    # mounts
    "open a new file system": "call('fsopen', b'tmpfs', 0)",
    "open the mounted root": "call('fspick', -100, b'/', 0)",
    "copy the tree of mounts": "call('open_tree', -100, b'/', 1)",
    "copy the tree of mounts with other attributes":
    "call('open_tree_attr', -100, b'/', 1, struct.pack('4Q', 0, 1, 0, 0), 32)",
    "carry the cover of the ledger elsewhere":
    "os.mkdir('/tmp/cover'); call('move_mount', os.open('.weft', 0x200000), b'', -100, b'/tmp/cover', 4);"
    " show('.weft/secret')",
    "make the system writable":
    "call('mount_setattr', -100, b'/usr', 0, struct.pack('4Q', 0, 1, 0, 0), 32); changed('/usr/bin/canary')",
    "exchange root and workspace": "call('pivot_root', b'.', b'.')",
    "take the root away": "works(libc.umount2(b'/', 2))",
    "ask for the mounts of the namespace before":
    "fcntl.ioctl(os.open('/proc/self/ns/mnt', 0), 0x8010b70c, bytearray(16)); escaped()",
    "mount files of its own by FUSE": "os.open('/dev/fuse', os.O_RDWR); escaped()",
    "have a program of root mount it": "subprocess.run(['mount', '--bind', '/', '/tmp'], check=True); escaped()",
    # namespaces
    "have a program make namespaces": "subprocess.run(['unshare', '-Urm', 'true'], check=True); escaped()",
    "have a program enter namespaces": "subprocess.run(['nsenter', '-t', '1', '-a', 'true'], check=True); escaped()",
    "start in a namespace of users by a structure":
    "pid = libc.syscall(NUMBERS['clone3'], struct.pack('8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)\n"
    "pid == 0 and os._exit(0); works(pid)",
    "join all namespaces of the first process": "works(libc.setns(os.pidfd_open(1), 0x6e020000))",
    "join the own users anew": "works(libc.setns(os.open('/proc/self/ns/user', 0), 0))",
    "ask for the users above": "fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xb702); escaped()",
    "ask for the processes above": "fcntl.ioctl(os.open('/proc/self/ns/pid', 0), 0xb702); escaped()",
    "make a namespace of clocks": "call('unshare', 0x80)",
    "set the clocks of its children": "os.write(os.open('/proc/self/timens_offsets', 1), b'boottime 99 0'); escaped()",
    "map users by the program for it":
    "subprocess.run(['newuidmap', str(os.getpid()), '0', '0', '1'], check=True); escaped()",
    "join other groups": "os.setgroups([0]); escaped()",
    "allow itself other groups": "os.write(os.open('/proc/self/setgroups', 1), b'allow'); escaped()",
    # privileges
    "take all rights back":
    "works(libc.capset(struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)))",
    "inherit rights": "works(libc.prctl(47, 2, 21, 0, 0))",
    "be allowed to gain privileges": "works(libc.prctl(38, 0, 0, 0, 0))",
    "be root without rights of root": "works(libc.prctl(28, 1, 0, 0, 0))",
    "leave a file with every capability":
    "open('program', 'w').close(); os.setxattr('program', 'security.capability',"
    " struct.pack('5I', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)); escaped()",
    "leave a label that a kernel obeys":
    "open('labelled', 'w').close(); os.setxattr('labelled', 'security.ima', b'\\4\\4' + bytes(32)); escaped()",
    "leave a mark that mounts obey":
    "os.mkdir('marked'); os.setxattr('marked', 'trusted.overlay.opaque', b'y'); escaped()",
    "leave a file that cannot be removed":
    "file = os.open('fixed', os.O_CREAT | os.O_RDWR); fcntl.ioctl(file, 0x40086602, struct.pack('l', 16)); escaped()",
    "make a file that runs as its owner": "os.umask(0); os.close(os.open('born', 0o101, 0o4755)); escaped()",
    "make a node that runs as its owner": "os.mknod('node', 0o104755); escaped()",
    "give a folder the rights of its group": "os.mkdir('of-group'); os.chmod('of-group', 0o2777); escaped()",
    "open a program of the system to all by a list":
    "os.setxattr('/usr/bin/env', 'system.posix_acl_access', struct.pack('I', 2) + struct.pack('HHI', 1, 7, 0)"
    " + struct.pack('HHI', 4, 7, 0) + struct.pack('HHI', 32, 7, 0)); escaped()",
    "leave a mark of what is removed": "os.mknod('whiteout', 0o020000, 0); escaped()",
    "have every program load a library": "changed('/etc/ld.so.preload')",
    "have a timer start it": "subprocess.run(['crontab', '-'], input=b'* * * * * true', check=True); escaped()",
    "have the manager of services start it": "subprocess.run(['systemd-run', '--user', 'true'], check=True); escaped()",
    # the workspace
    "read what a project in the workspace hides": "show('nested/.weft/secret')",
    "move that project": "os.rename('nested', 'elsewhere'); show('elsewhere/.weft/secret')",
    "exchange that project with another":
    "os.mkdir('other'); libc.renameat2(-100, b'nested', -100, b'other', 2);"
    " show('other/.weft/secret', 'nested/.weft/secret')",
    "exchange the ledger with a folder":
    "os.mkdir('mine'); libc.renameat2(-100, b'.weft', -100, b'mine', 2); show('mine/secret', '.weft/secret')",
    "remove the cover of the ledger": "os.rmdir('.weft'); escaped()",
    "write beside the ledger": "changed('.weft/planted')",
    "read a file of secrets": "show('.env')",
    "write a file of secrets": "changed('.env', os.O_WRONLY)",
    "give a file of secrets another name": "os.link('.env', 'env'); show('env')",
    "put another file in its place": "open('new', 'w').close(); os.rename('new', '.env'); escaped()",
    "clone a file of secrets":
    "fcntl.ioctl(os.open('clone', os.O_CREAT | os.O_RDWR), 0x40049409, os.open('.env', 0)); show('clone')",
    "give a program of the system a second name": "os.link('/usr/bin/env', 'second'); escaped()",
    "give an open program of the system a second name":
    "os.link(f'/proc/self/fd/{os.open(\"/usr/bin/env\", 0)}', 'third', follow_symlinks=True); escaped()",
    "give a file of the workspace a name outside":
    "open('own', 'w').close(); os.link('own', OUTSIDE + '/written'); escaped()",
    "change a file of the sandbox itself":
    "[changed(p, os.O_WRONLY) for p in glob.glob('/program/*') + glob.glob('/home/*/.gitconfig') + ['/etc/gitconfig']]",
    "make a folder at the root": "os.mkdir('/planted'); escaped()",
    # what git obeys outside
    "plant a hook": "changed('.git/hooks/post-commit')",
    "plant a hook in a project in the workspace": "changed('nested/.git/hooks/post-commit')",
    "carry the hooks away": "os.rename('.git/hooks', '.git/other'); escaped()",
    "set a program of git": "open('.git/config', 'a').write('[core]\\n\\tfsmonitor = ./x\\n')",
    "set a program of git by git":
    "print(subprocess.run(['git', 'config', 'core.fsmonitor', './x'], capture_output=True))",
    "have git filter files": "changed('.git/info/attributes')",
    "put another repository in its place": "os.rename('.git', 'git'); escaped()",
    "lead git to another repository": "changed('.git/commondir', os.O_WRONLY | os.O_TRUNC)",
    # sockets
    "find a socket of somebody":
    "import stat\n[escaped(os.path.join(folder, name)) for top in ('run', 'var', 'tmp', 'home', 'root', 'etc', 'mnt')"
    " for folder, _, names in os.walk('/' + top) for name in names if not folder.startswith('/tmp/weft-proxy-')"
    " and stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)]",
    "speak to the bus of the system": "reach(socket.AF_UNIX, 1, '/run/dbus/system_bus_socket')",
    "speak to the screen": "reach(socket.AF_UNIX, 1, '\\0/tmp/.X11-unix/X0')",
    "speak to the screen by its path": "reach(socket.AF_UNIX, 1, '/tmp/.X11-unix/X0')",
    "speak to the agent of keys": "reach(socket.AF_UNIX, 1, os.environ.get('SSH_AUTH_SOCK', UNIX))",
    "speak to podman": "reach(socket.AF_UNIX, 1, '/run/podman/podman.sock')",
    "have the proxy hand over a descriptor":
    "with socket.socket(socket.AF_UNIX) as s:\n"
    " s.settimeout(2); s.connect(glob.glob('/tmp/weft-proxy-*/proxy')[0])\n"
    " socket.send_fds(s, [b'GET / HTTP/1.1\\r\\n\\r\\n'], [0]); _, given, _, _ = socket.recv_fds(s, 999, 9)\n"
    " given and escaped(given)",
    "have the proxy reach it behind a user":
    "proxied(f'GET http://public.example@127.0.0.1:{PORT}/ HTTP/1.1\\r\\nHost: public.example\\r\\n\\r\\n')",
    "have the proxy reach no address": "proxied(f'CONNECT 0.0.0.0:{PORT} HTTP/1.1\\r\\n\\r\\n')",
    "list the sockets of the machine":
    "[escaped(p) for p in ('unix', 'tcp') for text in (UNIX, f':{PORT:04X}') if text in open('/proc/net/' + p).read()]",
    "ask the kernel for the sockets of the machine":
    "with socket.socket(16, 3, 4) as s:\n"
    " s.settimeout(2); s.send(struct.pack('IHHIIBBHIII8x', 40, 20, 0x301, 1, 0, 1, 0, 0, 0xffffffff, 0, 1))\n"
    " [escaped() for _ in range(99) if UNIX.encode() in s.recv(1 << 16)]",
    "speak to the audit of the machine":
    "with socket.socket(16, 3, 9) as s:\n"
    " s.settimeout(2); s.send(struct.pack('IHHII', 16, 1000, 5, 1, 0))\n"
    " s.recv(999)[4:6] == b'\\xe8\\x03' and escaped()",
    "hear of the processes of the machine":
    "with socket.socket(16, 2, 11) as s:\n"
    " s.settimeout(1); s.bind((0, 1)); message = struct.pack('IHHII4IHHI', 40, 3, 0, 0, 0, 1, 1, 0, 0, 4, 0, 1)\n"
    " s.send(message); os.fork() or os._exit(0); s.recv(999); escaped()",
    "use a rare family of sockets":
    "for family in {*range(3, 47)} - {10, 16}:\n"
    " if libc.socket(family, 1, 0) >= 0 or libc.socket(family, 3, 0) >= 0 or libc.socket(family, 5, 0) >= 0:\n"
    "  escaped(family)",
    "connect by several paths":
    "with socket.socket(2, 1, 262) as s: s.settimeout(2); s.connect((ADDRESS, PORT)); escaped()",
    "send to everybody on the network":
    "with socket.socket(2, 2) as s: s.setsockopt(1, 6, 1); s.sendto(b'x', ('255.255.255.255', 9)); escaped()",
    # other processes
    "read the memory of a process by its address":
    "buffer = ctypes.create_string_buffer(64); there, here = [(ctypes.c_void_p * 2)(a, 64) for a in"
    " (MEMORY, ctypes.addressof(buffer))]\n"
    "libc.process_vm_readv(PID, here, 1, there, 1, 0); print(buffer.raw)",
    "read the memory of a process by its file":
    "print(os.pread(os.open(f'/proc/{PID}/mem', 0), 64, MEMORY))",
    "attach memory of a process by its number":
    "libc.shmat.restype = ctypes.c_void_p; address = libc.shmat(SEGMENT, None, 0o10000)\n"
    "address != 2 ** 64 - 1 and print(ctypes.string_at(address, 64))",
    "share memory by a number": "call('shmget', 0, 4096, 0o1600)",
    "share semaphores by a number": "call('semget', 0, 1, 0o1600)",
    "share a queue by a number": "call('msgget', 0, 0o1600)",
    "share a queue by a name": "call('mq_open', b'weft-canary', 0o102, 0o600, None)",
    "take a descriptor of the first process": "call('pidfd_getfd', os.pidfd_open(1), 0, 0)",
    "compare itself with the first process": "call('kcmp', os.getpid(), 1, 0, 0, 0)",
    "be traced": "call('ptrace', 0, 0, 0, 0)",
    "find a secret in the memory of other processes":
    "import re\n"
    "for place in set(glob.glob('/proc/[0-9]*')) - {f'/proc/{os.getpid()}', f'/proc/{os.getppid()}'}:\n"
    " try:\n"
    "  for line in open(place + '/maps'):\n"
    "   start, end = [int(word, 16) for word in line.split()[0].split('-')]\n"
    "   with open(place + '/mem', 'rb', 0) as file: file.seek(start); data = file.read(end - start)\n"
    "   print(*re.findall(b'canary-[0-9a-f]{8}', data))\n"
    " except (OSError, OverflowError): pass",
    "find a process that may do more":
    "def rights(p): return ([os.readlink(n) for n in sorted(glob.glob(p + '/ns/*'))], [line for line in"
    " open(p + '/status') if line.startswith(('Uid', 'Gid', 'Cap', 'NoNewPrivs', 'Seccomp'))])\n"
    "for place in glob.glob('/proc/[0-9]*'):\n"
    " try: rights(place) != rights('/proc/self') and escaped(rights(place))\n"
    " except OSError: pass",
    "signal everybody": "os.kill(-1, signal.SIGURG)",
    "signal by the folder of a process": "signal.pidfd_send_signal(os.open(f'/proc/{PID}', 0), 0); escaped()",
    "signal a thread outside": "works(libc.tgkill(PID, PID, 0))",
    "have the kernel signal a process outside": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, PID); escaped()",
    "ask for the session of a process outside": "os.getsid(PID); escaped()",
    "ask how a process outside is scheduled": "os.sched_getparam(PID); escaped()",
    "stop the first process": "os.kill(1, signal.SIGSTOP)",
    "move to another group of processes":
    "[changed(p, os.O_WRONLY) for p in glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True)]",
    "come before all others": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); escaped()",
    "come before all others at the disk":
    "works(libc.syscall({'x86_64': 251, 'aarch64': 30}[os.uname().machine], 1, 0, 1 << 13))",
    "slow every process of the user":
    "libc.syscall({'x86_64': 251, 'aarch64': 30}[os.uname().machine], 3, os.getuid(), 3 << 13)",
    "be killed last": "os.write(os.open('/proc/self/oom_score_adj', 1), b'-1000'); escaped()",
    "hold off who writes a program of the system":
    "fcntl.fcntl(os.open('/usr/bin/env', 0), fcntl.F_SETLEASE, fcntl.F_RDLCK); escaped()",
    "hold off who writes a file of the workspace":
    "file = os.open('held', os.O_CREAT); fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK); escaped()",
    # limits
    "take the whole disk": "os.posix_fallocate(os.open('big', 0o102), 0, 1 << 46); escaped()",
    "make a file larger than the disk": "os.ftruncate(os.open('sparse', 0o102), 1 << 46); escaped()",
    "raise the limit of files": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1)); escaped()",
    "leave an image of its memory": "resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); escaped()",
    "be told of the pressure on memory":
    "os.write(os.open('/proc/pressure/memory', os.O_RDWR), b'some 1000000 2000000'); escaped()",
    # the kernel
    "call by the numbers of 32 bits":
    "import mmap\nos.uname().machine == 'x86_64' or sys.exit()\n"
    "memory = mmap.mmap(-1, 4096, prot=7); memory.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"
    "escaped(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))())",
    "call by the numbers of x32": "os.uname().machine == 'x86_64' and works(libc.syscall(0x40000000 | 39))",
    "call by a number of tomorrow": "libc.syscall(470, 0, 0, 0, 0) == -1 and ctypes.get_errno() != 38 and escaped()",
    "lay a filter over the filter":
    "program = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n"
    "libc.prctl(22, 2, struct.pack('H6xQ', 1, ctypes.addressof(program)), 0, 0); call('memfd_create', b'y', 0)",
    "write to the terminal by a longer number":
    "libc.syscall(NUMBERS['ioctl'], 0, 1 << 32 | 0x5412, b'x'); ctypes.get_errno() == 1 or escaped()",
    "paste at the console": "libc.ioctl(0, 0x541C, b'\\3'); ctypes.get_errno() == 1 or escaped()",
    "find a device that no program needs":
    "[escaped(n) for n in os.listdir('/dev') if n not in"
    " 'null zero full urandom random fd stdin stdout stderr shm'.split()]",
    "find what the kernel offers in /sys": "[escaped(p) for p in glob.glob('/sys/*')]",
    "handle faults of pages by a device": "os.open('/dev/userfaultfd', os.O_RDWR); escaped()",
    "list the keys of the person":
    "[escaped() for p in ('/proc/keys', '/proc/key-users') if b'0' in open(p, 'rb').read()]",
    "queue reads and writes": "call('io_setup', 1, ctypes.byref(ctypes.c_ulong()))",
    "hide memory from the kernel": "call('memfd_secret', 0)",
    "hand pages to a pipe":
    "page = ctypes.create_string_buffer(9)\n"
    "call('vmsplice', os.pipe()[1], struct.pack('QQ', ctypes.addressof(page), 9), 1, 0)",
    "switch off random addresses": "call('personality', 0x0040000)",
    "reach the ports of the machine": "call('iopl', 3)",
    "change its table of segments": "call('modify_ldt', 0, ctypes.create_string_buffer(99), 99)",
    "load a module from a file": "call('finit_module', os.open('/usr/bin/env', 0), b'', 0)",
    "load a kernel from a file": "call('kexec_file_load', 0, 0, 0, None, 4)",
    "ask for the quotas of the disk": "call('quotactl', 0x80000100, None, 0, None)",
    "set how the clock runs": "call('adjtimex', ctypes.create_string_buffer(256))",
    "wake the machine": "works(libc.timerfd_create(8, 0))",
    "hang up the terminal": "call('vhangup')",
    "thaw the disk":
    "libc.ioctl(os.open('.', 0), 0xC0045878, 0); ctypes.get_errno() in (1, 25) or escaped(ctypes.get_errno())",
    "open a way of its own to the network's rules":
    "with socket.socket(2, 3, 255) as s: s.setsockopt(0, 64, b'x'); escaped()",
    "choose where the memory of others lies": "call('move_pages', 0, 0, None, None, None, 0)",
    "be notified instead of the kernel":
    "program = ctypes.create_string_buffer(struct.pack('HBBIHBBIHBBIHBBI', 0x20, 0, 0, 0, 0x15, 0, 1,"
    " NUMBERS['unshare'], 6, 0, 0, 0x7fc00000, 6, 0, 0, 0x7fff0000))\n"
    "listener = libc.syscall({'x86_64': 317, 'aarch64': 277}[os.uname().machine], 1, 8,"
    " struct.pack('H6xQ', 4, ctypes.addressof(program)))\n"
    "import select, threading; threading.Thread(target=lambda: libc.syscall(NUMBERS['unshare'], 0x10000000),"
    " daemon=True).start()\n"
    "listener >= 0 and select.select([listener], [], [], 0.5)[0] and escaped()",
}  # fmt: skip
