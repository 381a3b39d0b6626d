/* Preloaded into user-mode Linux 6.1 where the processor's saved state (XSAVE area) is larger than UML's buffer for it,
 * as with AMX. UML restores a process's state by PTRACE_SETREGSET with what its buffer holds, and such a kernel refuses
 * an area that is not whole. So: read the whole area, lay UML's part over its beginning, write the whole. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PEEKTEXT = 1, PEEKUSER = 3, GETREGSET = 0x4204, SETREGSET = 0x4205, XSTATE = 0x202 };

static char whole[1 << 16] __attribute__((aligned(64)));

long ptrace(int request, ...)
{
    va_list list;
    va_start(list, request);
    long pid = va_arg(list, int);
    void *address = va_arg(list, void *), *data = va_arg(list, void *);
    va_end(list);

    if (request == SETREGSET && (long)address == XSTATE) {
        const struct iovec *part = data;
        struct iovec area = {whole, sizeof whole};
        if (syscall(SYS_ptrace, GETREGSET, pid, address, &area) == 0 && area.iov_len > part->iov_len) {
            memcpy(whole, part->iov_base, part->iov_len);
            return syscall(SYS_ptrace, request, pid, address, &area);
        }
    }
    if (request >= PEEKTEXT && request <= PEEKUSER) { /* the C library returns the word, the kernel stores it */
        long word;
        if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
            return -1;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
