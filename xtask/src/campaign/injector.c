// Runs a program and makes its N-th system call of a class fail, whoever makes the call: the C library, or code that
// enters the kernel by itself. x86-64 Linux 5.3 or newer.
//
//   injector FOLDER CLASS ERRNO N REPORT PROGRAM [ARGUMENT...]
//
// CLASS is write, fsync, alloc, name, make, remove or read; calls on descriptors count if their file is below FOLDER.
// With N = 0 nothing fails. REPORT gets two numbers: how many calls of the class there were, and whether one failed.
// Ends as the program ended.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the injector knows the registers of x86-64 only"
#endif

#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e
#endif

struct entry_info {
    unsigned char op;
    unsigned char pad[3];
    unsigned int arch;
    unsigned long long ip, sp, nr, args[6];
};

static const char *folder;

static int below(pid_t pid, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int matches(const char *class, pid_t pid, const struct entry_info *call) {
    const unsigned long long *a = call->args;
    switch (call->nr) {
    case SYS_write: case SYS_pwrite64: case SYS_writev: case SYS_pwritev: case SYS_sendfile:
        return !strcmp(class, "write") && below(pid, (int)a[0]);
    case SYS_copy_file_range:
        return !strcmp(class, "write") && below(pid, (int)a[2]);
    case SYS_read: case SYS_pread64: case SYS_readv: case SYS_preadv:
        return !strcmp(class, "read") && below(pid, (int)a[0]);
    case SYS_fsync: case SYS_fdatasync: case SYS_syncfs: case SYS_sync_file_range:
        return !strcmp(class, "fsync") && below(pid, (int)a[0]);
    case SYS_fallocate: case SYS_ftruncate:
        return !strcmp(class, "alloc") && below(pid, (int)a[0]);
    case SYS_rename: case SYS_renameat: case SYS_renameat2: case SYS_link: case SYS_linkat:
        return !strcmp(class, "name");
    case SYS_unlink: case SYS_unlinkat: case SYS_rmdir:
        return !strcmp(class, "remove");
    case SYS_mkdir: case SYS_mkdirat:
        return !strcmp(class, "make");
    case SYS_open:
        return !strcmp(class, "make") && (a[1] & (O_CREAT | __O_TMPFILE));
    case SYS_openat:
        return !strcmp(class, "make") && (a[2] & (O_CREAT | __O_TMPFILE));
    case SYS_openat2: {
        errno = 0;
        long flags = ptrace(PTRACE_PEEKDATA, pid, (void *)a[2], 0);
        return !strcmp(class, "make") && errno == 0 && (flags & (O_CREAT | __O_TMPFILE));
    }
    default:
        return 0;
    }
}

int main(int argc, char **argv) {
    if (argc < 7) return 99;
    folder = argv[1];
    const char *class = argv[2];
    long error = atol(argv[3]), wanted = atol(argv[4]), seen = 0;
    int failed = 0;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[6], argv + 6);
        _exit(98);
    }
    int status;
    waitpid(child, &status, 0);
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, 0, options)) return 97;
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    pid_t failing = 0;
    int last = 0;
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0) {
            if (errno == EINTR) continue;
            break;
        }
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (pid == child) last = status;
            continue;
        }
        int deliver = 0, stopped = WSTOPSIG(status);
        if (stopped == (SIGTRAP | 0x80)) {
            struct entry_info info;
            memset(&info, 0, sizeof info);
            ptrace(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof info, &info);
            if (info.op == 1 && matches(class, pid, &info) && ++seen == wanted) {
                struct user_regs_struct regs;
                ptrace(PTRACE_GETREGS, pid, 0, &regs);
                regs.orig_rax = (unsigned long long)-1;
                ptrace(PTRACE_SETREGS, pid, 0, &regs);
                failing = pid;
                failed = 1;
            } else if (info.op == 2 && pid == failing) {
                struct user_regs_struct regs;
                ptrace(PTRACE_GETREGS, pid, 0, &regs);
                regs.rax = (unsigned long long)-error;
                ptrace(PTRACE_SETREGS, pid, 0, &regs);
                failing = 0;
            }
        } else if (stopped != SIGTRAP && stopped != SIGSTOP) {
            deliver = stopped;
        }
        ptrace(PTRACE_SYSCALL, pid, 0, deliver);
    }
    FILE *report = fopen(argv[5], "w");
    if (report) {
        fprintf(report, "%ld %d\n", seen, failed);
        fclose(report);
    }
    if (WIFSIGNALED(last)) {
        signal(WTERMSIG(last), SIG_DFL);
        raise(WTERMSIG(last));
    }
    return WEXITSTATUS(last);
}
