/* Makes the n-th system call on files of one folder fail, or kills the process there.

   Loaded with LD_PRELOAD by faults.py, which calls fault_arm(). Counted are open for writing,
   write, sync, truncate, rename, unlink and mkdir. A killed write is torn: half of its bytes are written. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE = 0, KILL = -1 };
#define MOST_FDS 4096

static char folder[4096];
static int fault, armed_at, sticky, no_locks, count;
static char ours[MOST_FDS]; /* descriptors of files in the folder */

void fault_arm(const char *path, int at, int kind, int stays) {
    strncpy(folder, path, sizeof folder - 1);
    armed_at = at, fault = kind, sticky = stays, count = 0;
}
void fault_no_locks(void) { no_locks = 1; }
int fault_count(void) { return count; }

static int inside(int at, const char *path) {
    char full[8192];
    if (!folder[0] || !path) return 0;
    if (path[0] == '/' || at != AT_FDCWD)
        snprintf(full, sizeof full, "%s", path);
    else {
        char here[4096];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(full, sizeof full, "%s/%s", here, path);
    }
    return strncmp(full, folder, strlen(folder)) == 0;
}

/* Count a call; return 1 if it has to fail, with errno set. */
static int fails(void) {
    int number = ++count;
    if (number != armed_at && !(sticky && armed_at && number > armed_at)) return 0;
    if (fault == KILL) kill(getpid(), SIGKILL);
    errno = fault;
    return fault != NONE;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int track(int fd, int is_inside) {
    if (fd >= 0 && fd < MOST_FDS) ours[fd] = is_inside;
    return fd;
}

#define OPEN(name, parameters, at, ...)                                          \
    int name parameters {                                                        \
        REAL(name);                                                              \
        va_list more;                                                            \
        va_start(more, flags);                                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;  \
        va_end(more);                                                            \
        int is_inside = inside(at, path);                                        \
        if (is_inside && flags & (O_CREAT | O_WRONLY | O_RDWR) && fails()) return -1; \
        return track(real(__VA_ARGS__, mode), is_inside);                        \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPEN(openat, (int at, const char *path, int flags, ...), at, at, path, flags)
OPEN(openat64, (int at, const char *path, int flags, ...), at, at, path, flags)

#define IS_OURS(fd) ((fd) >= 0 && (fd) < MOST_FDS && ours[fd])

#define WRITE(name, parameters, half, whole)                                     \
    ssize_t name parameters {                                                    \
        REAL(name);                                                              \
        if (IS_OURS(fd) && armed_at == count + 1 && fault == KILL) real half;    \
        if (IS_OURS(fd) && fails()) return -1;                                   \
        return real whole;                                                       \
    }
WRITE(write, (int fd, const void *data, size_t n), (fd, data, n / 2), (fd, data, n))
WRITE(pwrite, (int fd, const void *data, size_t n, off_t o), (fd, data, n / 2, o), (fd, data, n, o))
WRITE(pwrite64, (int fd, const void *data, size_t n, off64_t o), (fd, data, n / 2, o), (fd, data, n, o))
WRITE(writev, (int fd, const struct iovec *v, int n), (fd, v, n / 2), (fd, v, n))

int fsync(int fd) {
    REAL(fsync);
    return IS_OURS(fd) && fails() ? -1 : real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    return IS_OURS(fd) && fails() ? -1 : real(fd);
}
int rename(const char *from, const char *to) {
    REAL(rename);
    return inside(AT_FDCWD, to) && fails() ? -1 : real(from, to);
}
int renameat(int at, const char *from, int to_at, const char *to) {
    REAL(renameat);
    return inside(to_at, to) && fails() ? -1 : real(at, from, to_at, to);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return inside(AT_FDCWD, path) && fails() ? -1 : real(path, mode);
}
int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < MOST_FDS) ours[fd] = 0;
    return real(fd);
}
int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return IS_OURS(fd) && fails() ? -1 : real(fd, size);
}
int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    return IS_OURS(fd) && fails() ? -1 : real(fd, size);
}
int unlink(const char *path) {
    REAL(unlink);
    return inside(AT_FDCWD, path) && fails() ? -1 : real(path);
}
int flock(int fd, int how) {
    REAL(flock);
    if (!no_locks) return real(fd, how);
    errno = ENOLCK; /* as network file systems without locks answer */
    return -1;
}
#define FCNTL(name)                                                              \
    int name(int fd, int what, ...) {                                            \
        REAL(name);                                                              \
        va_list more;                                                            \
        va_start(more, what);                                                    \
        void *argument = va_arg(more, void *);                                   \
        va_end(more);                                                            \
        if (no_locks && (what == F_SETLK || what == F_SETLKW) && IS_OURS(fd)) {  \
            errno = ENOLCK;                                                      \
            return -1;                                                           \
        }                                                                        \
        return real(fd, what, argument);                                         \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
