/* Preloaded into a server: while the file named by LOCKKEEPER_FAULTS_SYNC exists, each sync fails, and what was written since
 * the one before is lost, as the kernel does with pages that the disk refuses: the file has its former bytes again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct written {
    int fd;
    off64_t at;
    size_t length;
    char *former;
    struct written *next;
};

static struct written *unsynced;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t write_really(int fd, const void *bytes, size_t length, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, bytes, length, at);
}

static int sync_really(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}

static void remember(int fd, size_t length, off64_t at) {
    struct written *one = calloc(1, sizeof *one);
    if (!one || !(one->former = calloc(1, length))) abort();
    if (pread64(fd, one->former, length, at) < 0) abort();
    one->fd = fd;
    one->at = at;
    one->length = length;
    one->next = unsynced;
    unsynced = one;
}

/* Forgets what was written to the file, or undoes it, the last write first. */
static void settle(int fd, int undo) {
    struct written **place = &unsynced;
    while (*place) {
        struct written *one = *place;
        if (one->fd != fd) {
            place = &one->next;
            continue;
        }
        if (undo) write_really(fd, one->former, one->length, one->at);
        *place = one->next;
        free(one->former);
        free(one);
    }
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    pthread_mutex_lock(&lock);
    remember(fd, length, at);
    ssize_t written = write_really(fd, bytes, length, at);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return written;
}

int fdatasync(int fd) {
    const char *order = getenv("LOCKKEEPER_FAULTS_SYNC");
    int fails = order && access(order, F_OK) == 0;
    int answer = fails ? -1 : sync_really(fd);
    int error = fails ? EIO : errno;
    pthread_mutex_lock(&lock);
    settle(fd, fails);
    pthread_mutex_unlock(&lock);
    errno = error;
    return answer;
}

int close(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    pthread_mutex_lock(&lock);
    settle(fd, 0);
    pthread_mutex_unlock(&lock);
    return real(fd);
}
