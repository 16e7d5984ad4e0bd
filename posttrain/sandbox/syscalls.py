"""The system calls that a program in the sandbox may make, and their numbers on each kind of processor."""

from __future__ import annotations


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (word.partition("=") for word in text.split())}


# from the kernel's asm/unistd_64.h and asm-generic/unistd.h; numbers never change
NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": _table("""
        read=0 write=1 close=3 open=2 openat=257 openat2=437 stat=4 fstat=5 lstat=6 newfstatat=262 statx=332 access=21
        faccessat=269 faccessat2=439 lseek=8 pread64=17 pwrite64=18 readv=19 writev=20 preadv=295 pwritev=296 preadv2=327
        pwritev2=328 getdents=78 getdents64=217 getcwd=79 chdir=80 fchdir=81 rename=82 renameat=264 renameat2=316 mkdir=83
        mkdirat=258 rmdir=84 creat=85 link=86 linkat=265 unlink=87 unlinkat=263 symlink=88 symlinkat=266 readlink=89
        readlinkat=267 chmod=90 fchmod=91 fchmodat=268 umask=95 utime=132 utimes=235 utimensat=280 futimesat=261 truncate=76
        ftruncate=77 fallocate=285 fsync=74 fdatasync=75 flock=73 fadvise64=221 statfs=137 fstatfs=138 copy_file_range=326
        sendfile=40 fcntl=72 dup=32 dup2=33 dup3=292 pipe=22 pipe2=293 close_range=436 mmap=9 mprotect=10 munmap=11 mremap=25
        msync=26 mincore=27 madvise=28 brk=12 membarrier=324 rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15
        rt_sigtimedwait=128 rt_sigpending=127 rt_sigsuspend=130 rt_sigqueueinfo=129 sigaltstack=131 kill=62 tkill=200 tgkill=234
        pause=34 alarm=37 getitimer=36 setitimer=38 timer_create=222 timer_settime=223 timer_gettime=224 timer_getoverrun=225
        timer_delete=226 timerfd_create=283 timerfd_settime=286 timerfd_gettime=287 signalfd4=289 poll=7 ppoll=271 select=23
        pselect6=270 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_wait=232 epoll_pwait=281 epoll_pwait2=441
        eventfd=284 eventfd2=290 sendto=44 recvfrom=45 shutdown=48 getsockname=51 getsockopt=55 setsockopt=54 nanosleep=35
        clock_nanosleep=230 clock_gettime=228 clock_getres=229 gettimeofday=96 time=201 times=100 getrusage=98 getrlimit=97
        setrlimit=160 prlimit64=302 getrandom=318 uname=63 getpid=39 capget=125 getppid=110 gettid=186 getuid=102 geteuid=107 getgid=104
        getegid=108 getgroups=115 getresuid=118 getresgid=120 getpgid=121 getpgrp=111 getsid=124 setpgid=109 setsid=112
        sched_yield=24 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 sched_get_priority_max=146
        sched_get_priority_min=147 getcpu=309 futex=202 set_robust_list=273 get_robust_list=274 set_tid_address=218 rseq=334
        arch_prctl=158 restart_syscall=219 exit=60 exit_group=231 wait4=61 waitid=247 clone=56 clone3=435 fork=57 vfork=58
        execve=59 execveat=322 socket=41 socketpair=53 ioctl=16 prctl=157 getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194
        llistxattr=195 flistxattr=196 setxattr=188 lsetxattr=189 fsetxattr=190
    """),
    "aarch64": _table("""
        read=63 write=64 close=57 openat=56 openat2=437 fstat=80 newfstatat=79 statx=291 faccessat=48 faccessat2=439 lseek=62
        pread64=67 pwrite64=68 readv=65 writev=66 preadv=69 pwritev=70 preadv2=286 pwritev2=287 getdents64=61 getcwd=17 chdir=49
        fchdir=50 renameat=38 renameat2=276 mkdirat=34 linkat=37 unlinkat=35 symlinkat=36 readlinkat=78 fchmod=52 fchmodat=53
        umask=166 utimensat=88 truncate=45 ftruncate=46 fallocate=47 fsync=82 fdatasync=83 flock=32 fadvise64=223 statfs=43
        fstatfs=44 copy_file_range=285 sendfile=71 fcntl=25 dup=23 dup3=24 pipe2=59 close_range=436 mmap=222 mprotect=226
        munmap=215 mremap=216 msync=227 mincore=232 madvise=233 brk=214 membarrier=283 rt_sigaction=134 rt_sigprocmask=135
        rt_sigreturn=139 rt_sigtimedwait=137 rt_sigpending=136 rt_sigsuspend=133 rt_sigqueueinfo=138 sigaltstack=132 kill=129
        tkill=130 tgkill=131 getitimer=102 setitimer=103 timer_create=107 timer_settime=110 timer_gettime=108
        timer_getoverrun=109 timer_delete=111 timerfd_create=85 timerfd_settime=86 timerfd_gettime=87 signalfd4=74 ppoll=73
        pselect6=72 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 epoll_pwait2=441 eventfd2=19 sendto=206 recvfrom=207
        shutdown=210 getsockname=204 getsockopt=209 setsockopt=208 nanosleep=101 clock_nanosleep=115 clock_gettime=113
        clock_getres=114 gettimeofday=169 times=153 getrusage=165 getrlimit=163 setrlimit=164 prlimit64=261 getrandom=278
        uname=160 getpid=172 capget=90 getppid=173 gettid=178 getuid=174 geteuid=175 getgid=176 getegid=177 getgroups=158 getresuid=148
        getresgid=150 getpgid=155 getsid=156 setpgid=154 setsid=157 sched_yield=124 sched_getaffinity=123 sched_getparam=121
        sched_getscheduler=120 sched_get_priority_max=125 sched_get_priority_min=126 getcpu=168 futex=98 set_robust_list=99
        get_robust_list=100 set_tid_address=96 rseq=293 restart_syscall=128 exit=93 exit_group=94 wait4=260 waitid=95 clone=220
        clone3=435 execve=221 execveat=281 socket=198 socketpair=199 ioctl=29 prctl=167 getxattr=8 lgetxattr=9 fgetxattr=10
        listxattr=11 llistxattr=12 flistxattr=13 setxattr=5 lsetxattr=6 fsetxattr=7
    """),
}

# these have rules of their own in seccomp.py; every other name above is allowed whatever its arguments
RULED = (
    "clone", "clone3", "fork", "vfork", "execve", "execveat", "socket", "socketpair", "ioctl", "prctl", "getxattr", "lgetxattr",
    "fgetxattr", "listxattr", "llistxattr", "flistxattr", "setxattr", "lsetxattr", "fsetxattr",
)  # fmt: skip
