/* Counts the calls that a program makes on files below one folder, and lets one of them fail or be the last.
 *
 * Loaded with LD_PRELOAD. It stands between the program and the C library for the calls that open, read, write, sync, rename
 * and remove files. The environment says what happens:
 *
 *   CRASH_ROOT     the folder, absolute; other paths pass through
 *   CRASH_ONLY     a part of the path; calls on others pass through (optional)
 *   CRASH_COUNTER  a file of 8 bytes that counts calls, also across exec
 *   CRASH_AT       the call at which something happens; 0 for never
 *   CRASH_HOW      `kill`, or the number of an error
 *   CRASH_LASTING  when set, every call from CRASH_AT on fails, as on a disk that is full
 *   CRASH_LOG      a file to which every change is appended with its data, for power cuts (optional)
 *
 * A record of the log: operation (1 byte), inode (8), number (8), lengths of two paths and of data (8 each), then these three.
 * Absent: mmap, links, and calls through io_uring; the program uses none of them on files it writes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static char root[PATH_MAX], only[256];
static size_t root_length;
static volatile uint64_t *counter;
static uint64_t at;
static int how_errno, kills, lasting, log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CRASH_ROOT");
    if (!text) return;
    snprintf(root, sizeof root, "%s", text);
    root_length = strlen(root);
    if ((text = getenv("CRASH_ONLY"))) snprintf(only, sizeof only, "%s", text);
    if ((text = getenv("CRASH_AT"))) at = strtoull(text, NULL, 10);
    if ((text = getenv("CRASH_HOW"))) {
        kills = !strcmp(text, "kill");
        how_errno = atoi(text);
    }
    lasting = getenv("CRASH_LASTING") != NULL;
    if ((text = getenv("CRASH_COUNTER"))) {
        int fd = syscall(SYS_openat, AT_FDCWD, text, O_RDWR | O_CLOEXEC);
        void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0) syscall(SYS_close, fd);
        counter = page == MAP_FAILED ? NULL : page;
    }
    if ((text = getenv("CRASH_LOG")))
        log_fd = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* The absolute path of a name as a call gives it, in `full`. */
static void absolute(int dir, const char *path, char *full) {
    char base[PATH_MAX] = "", link[64];
    full[0] = 0;
    if (!path) return;
    if (path[0] != '/') {
        ssize_t length = -1;
        if (dir == AT_FDCWD) {
            if (getcwd(base, sizeof base)) length = strlen(base);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            length = readlink(link, base, sizeof base - 1);
        }
        if (length < 0) return;
        base[length] = 0;
    }
    while (path[0] == '.' && path[1] == '/') path += 2;
    snprintf(full, PATH_MAX, "%s%s%s", base, path[0] == '/' || !path[0] || !strcmp(path, ".") ? "" : "/",
             !strcmp(path, ".") ? "" : path);
    size_t length = strlen(full);
    while (length > 1 && full[length - 1] == '/') full[--length] = 0;
}

static void path_of(int fd, char *full) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, full, PATH_MAX - 1);
    full[length < 0 ? 0 : length] = 0;
}

static int below(const char *full) {
    return root_length && !strncmp(full, root, root_length) && (full[root_length] == '/' || !full[root_length]);
}

/* Counts a call on `full`; says whether it must fail with errno set. A write on a disk that has just become full is cut in
 * the middle first, which `halves` asks for. */
static int struck(const char *full, int *halves) {
    if (!counter || !below(full) || (only[0] && !strstr(full, only))) return 0;
    uint64_t number = __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
    if (!at || number < at || (number > at && !lasting)) return 0;
    if (kills) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;) syscall(SYS_pause);
    }
    if (halves && lasting && number == at) {
        *halves = 1;
        return 0;
    }
    errno = how_errno;
    return 1;
}

static void append(const void *bytes, size_t length) {
    const char *from = bytes;
    while (length) {
        ssize_t written = syscall(SYS_write, log_fd, from, length);
        if (written <= 0) return;
        from += written;
        length -= written;
    }
}

static void note(char operation, uint64_t inode, uint64_t number, const char *one, const char *two, const void *data, uint64_t length) {
    if (log_fd < 0 || strstr(one, " (deleted)")) return;
    int before = errno;
    uint64_t head[5] = {inode, number, strlen(one), strlen(two), length};
    pthread_mutex_lock(&lock);
    append(&operation, 1);
    append(head, sizeof head);
    append(one, head[2]);
    append(two, head[3]);
    append(data, length);
    pthread_mutex_unlock(&lock);
    errno = before;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static int is_folder(int fd) {
    struct stat found;
    return !fstat(fd, &found) && S_ISDIR(found.st_mode);
}

static int open_any(int dir, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    absolute(dir, path, full);
    if (struck(full, NULL)) return -1;
    int changes = below(full) && (flags & (O_CREAT | O_TRUNC)) && (flags & O_TMPFILE) != O_TMPFILE;
    struct stat before;
    int was = changes && !stat(full, &before);
    int fd = syscall(SYS_openat, dir, path, flags | O_LARGEFILE, mode);
    if (fd >= 0 && changes) {
        if (!was) note('c', inode_of(fd), 0, full, "", NULL, 0);
        else if (flags & O_TRUNC) note('t', inode_of(fd), 0, full, "", NULL, 0);
    }
    return fd;
}

#define MODE(flags)                                      \
    mode_t mode = 0;                                     \
    if ((flags) & (O_CREAT | O_TMPFILE)) {               \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode = va_arg(rest, mode_t);                     \
        va_end(rest);                                    \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return open_any(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return open_any(dir, path, flags, mode); }

ssize_t read(int fd, void *to, size_t count) {
    char full[PATH_MAX];
    path_of(fd, full);
    return struck(full, NULL) ? -1 : syscall(SYS_read, fd, to, count);
}

static ssize_t pread_any(int fd, void *to, size_t count, off64_t offset) {
    char full[PATH_MAX];
    path_of(fd, full);
    return struck(full, NULL) ? -1 : syscall(SYS_pread64, fd, to, count, offset);
}

ssize_t pread(int fd, void *to, size_t count, off_t offset) { return pread_any(fd, to, count, offset); }
ssize_t pread64(int fd, void *to, size_t count, off64_t offset) { return pread_any(fd, to, count, offset); }

ssize_t write(int fd, const void *from, size_t count) {
    char full[PATH_MAX];
    int halves = 0;
    path_of(fd, full);
    if (struck(full, &halves)) return -1;
    if (halves && count > 1) count /= 2;
    uint64_t offset = 0;
    if (log_fd >= 0 && below(full)) {
        struct stat found;
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        offset = appends && !fstat(fd, &found) ? (uint64_t)found.st_size : (uint64_t)lseek(fd, 0, SEEK_CUR);
    }
    ssize_t written = syscall(SYS_write, fd, from, count);
    if (written > 0 && below(full)) note('w', inode_of(fd), offset, full, "", from, written);
    return written;
}

static ssize_t pwrite_any(int fd, const void *from, size_t count, off64_t offset) {
    char full[PATH_MAX];
    int halves = 0;
    path_of(fd, full);
    if (struck(full, &halves)) return -1;
    if (halves && count > 1024) count = count / 2 / 512 * 512;
    ssize_t written = syscall(SYS_pwrite64, fd, from, count, offset);
    if (written > 0 && below(full)) note('w', inode_of(fd), offset, full, "", from, written);
    return written;
}

ssize_t pwrite(int fd, const void *from, size_t count, off_t offset) { return pwrite_any(fd, from, count, offset); }
ssize_t pwrite64(int fd, const void *from, size_t count, off64_t offset) { return pwrite_any(fd, from, count, offset); }

static int sync_any(int fd, long call) {
    char full[PATH_MAX];
    path_of(fd, full);
    if (struck(full, NULL)) return -1;
    int done = syscall(call, fd);
    if (!done && below(full)) note(is_folder(fd) ? 'S' : 's', inode_of(fd), 0, full, "", NULL, 0);
    return done;
}

int fsync(int fd) { return sync_any(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_any(fd, SYS_fdatasync); }

static int truncate_any(int fd, off64_t length) {
    char full[PATH_MAX];
    path_of(fd, full);
    if (struck(full, NULL)) return -1;
    int done = syscall(SYS_ftruncate, fd, length);
    if (!done && below(full)) note('t', inode_of(fd), length, full, "", NULL, 0);
    return done;
}

int ftruncate(int fd, off_t length) { return truncate_any(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_any(fd, length); }

static int allocate_any(int fd, off64_t offset, off64_t length, int (*real)(int, off64_t, off64_t)) {
    char full[PATH_MAX];
    path_of(fd, full);
    return struck(full, NULL) ? errno : real(fd, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(posix_fallocate64);
    return allocate_any(fd, offset, length, real);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    REAL(posix_fallocate);
    return allocate_any(fd, offset, length, (int (*)(int, off64_t, off64_t))real);
}

static int rename_any(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char one[PATH_MAX], two[PATH_MAX];
    absolute(from_dir, from, one);
    absolute(to_dir, to, two);
    if (struck(two, NULL)) return -1;
    int done = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (!done && below(two)) note('r', 0, 0, one, two, NULL, 0);
    return done;
}

int rename(const char *from, const char *to) { return rename_any(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return rename_any(from_dir, from, to_dir, to, 0); }

static int unlink_any(int dir, const char *path, int flags) {
    char full[PATH_MAX];
    absolute(dir, path, full);
    if (struck(full, NULL)) return -1;
    int done = syscall(SYS_unlinkat, dir, path, flags);
    if (!done && below(full)) note('u', 0, 0, full, "", NULL, 0);
    return done;
}

int unlink(const char *path) { return unlink_any(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlink_any(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int dir, const char *path, int flags) { return unlink_any(dir, path, flags); }

int mkdir(const char *path, mode_t mode) {
    char full[PATH_MAX];
    absolute(AT_FDCWD, path, full);
    if (struck(full, NULL)) return -1;
    int done = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (!done && below(full)) note('m', 0, 0, full, "", NULL, 0);
    return done;
}

/* Copies go through read and write, where they are seen. */
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t length, unsigned flags) {
    (void)from, (void)from_at, (void)to, (void)to_at, (void)length, (void)flags;
    errno = ENOSYS;
    return -1;
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
    (void)to, (void)from, (void)offset, (void)count;
    errno = ENOSYS;
    return -1;
}
